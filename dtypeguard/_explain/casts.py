"""Writes the cast that an error over operands asks for, in terms of the source."""

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import tree_util

from .._leaves.dtypes import dtype_of, is_array, is_python_number, kind
from .._leaves.files import short_path
from .._leaves.rows import lost
from .._leaves.types import DType, PyTree
from .._program.source import evaluated, text_of
from .sites import Argument, Site

_KINDS = ("bool", "int", "float", "complex")
_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


class Cast(NamedTuple):
    """An argument that is to have another dtype."""

    argument: Argument
    dtype: DType


def casts_to_meet(
    arguments: Sequence[Argument], forced: Sequence[Argument]
) -> list[list[Cast]]:
    """The casts after which some arguments have one dtype: the best way and another.

    Args:
        arguments: of different dtypes.
        forced: those that a promotion gave their dtype.
    """
    dtypes = list(dict.fromkeys(dtype_of(each.value) for each in arguments))
    kept = next((each for each in arguments if _is_kept(each, arguments)), None)
    if kept is not None:
        targets = [dtype_of(kept.value)]
    elif {each.base for each in arguments} <= {"lower", "upper"}:
        targets = [jnp.dtype("int32")]
    elif len({kind(dtype) for dtype in dtypes}) > 1:
        highest = max(_KINDS.index(kind(dtype) or "bool") for dtype in dtypes)
        targets = [each for each in dtypes if kind(each) == _KINDS[highest]][:1]
    else:
        narrow, *_, wide = sorted(dtypes, key=lambda dtype: dtype.itemsize)
        targets = [wide, narrow]
        promoted = {dtype_of(each.value) for each in forced}
        if promoted == {wide} or wide.itemsize == 8:
            targets = [narrow, wide]
    ways = [
        [Cast(each, to) for each in arguments if dtype_of(each.value) != to]
        for to in targets
    ]
    return [way for way in ways if all(each.argument.source for each in way)] or ways[:1]


def _is_kept(argument: Argument, others: Sequence[Argument]) -> bool:
    """Whether an argument keeps its type: it is written to, or it is clamped."""
    if argument.base in ("operand", "array", "primals"):
        return True
    return argument.base == "x" and {each.base for each in others} & {"min", "max"} != set()


def sentences(ways: Sequence[Sequence[Cast]], site: Site) -> Iterator[str]:
    """What to write, a cast a line; the casts of another way begin with "Or"."""
    for number, way in enumerate(ways):
        written = dict.fromkeys(_sentence(cast, site) for cast in _distinct(way))
        for position, sentence in enumerate(written):
            word = "And" if position else "Or" if number else ""
            yield f"{word} {sentence[0].lower()}{sentence[1:]}" if word else sentence


def _distinct(way: Sequence[Cast]) -> list[Cast]:
    """One cast for each expression: that of a container casts all its leaves."""
    return list({cast.argument.source or cast.argument.name: cast for cast in way}.values())


def _sentence(cast: Cast, site: Site) -> str:
    argument, dtype = cast
    if argument.source is None or not argument.source.lineno:
        text = cast_text(argument, "x", dtype) + lost(dtype_of(argument.value), dtype)
        return f"Cast the argument {argument.name}: {text}."
    old = text_of(argument.source, site.file)
    new = cast_text(argument, old, dtype)
    if isinstance(site.node, ast.AugAssign) and argument.source is site.node.target:
        changed, right = ast.unparse(site.node), ast.unparse(site.node.value)
        sign = changed.removeprefix(old).removesuffix(right).strip().removesuffix("=")
        right = right if isinstance(site.node.value, _ATOMS) else f"({right})"
        old, new = changed, f"{old} = {new} {sign} {right}"
    place = f"{short_path(site.file)}:{argument.source.lineno}"
    return (
        f"At {place} write {new} in place of {old}{lost(dtype_of(argument.value), dtype)}."
    )


def cast_text(argument: Argument, text: str, dtype: DType) -> str:
    """An expression with a cast."""
    value, name = argument.value, dtype_text(dtype)
    if not argument.is_whole:
        return _mapped(text, str(dtype_of(value)), name)
    if is_python_number(value) or isinstance(argument.source, ast.Constant):
        return f"int({text})" if kind(dtype) == "int" else f"jnp.asarray({text}, {name})"
    if kind(dtype_of(value)) == "complex" and kind(dtype) != "complex":
        return f"jnp.real({text}).astype({name})"
    is_atom = argument.source is None or isinstance(argument.source, _ATOMS)
    return f"{text if is_atom else f'({text})'}.astype({name})"


def _mapped(text: str, before: str, name: str) -> str:
    is_it = f'getattr(x, "dtype", None) == {dtype_text(before)}'
    return f"jax.tree.map(lambda x: x.astype({name}) if {is_it} else x, {text})"


def dtype_text(dtype: DType) -> str:
    """A dtype as it is written in source."""
    return "bool" if str(dtype) == "bool" else f"jnp.{dtype}"


def casts_of_users(
    arguments: Sequence[Argument], site: Site, dtype: DType | None
) -> list[Cast]:
    """What to cast in the user's own call of a package in which some arguments differ.

    The cast after which no leaf of the call has the dtype that was cast.

    Args:
        arguments: the arguments that JAX refused, in the package.
        site: the user's own line.
        dtype: what JAX wants; None if it wants them alike.
    """
    dtypes = list(dict.fromkeys(dtype_of(each.value) for each in arguments))
    given = list(_given(site))
    if not {dtype_of(each.value) for each in given}.issuperset(dtypes):
        return []  # some come from elsewhere
    for each in sorted(given, key=lambda each: not each.is_whole):  # single arrays first
        own = dtype_of(each.value)
        others = [dtype_of(x.value) for x in given if x.source is not each.source]
        to = [other for other in dtypes if other != own] if dtype is None else [dtype]
        if each.source is not None and own in dtypes and to and own not in others:
            return [Cast(each, to[0])]
    return []


def _given(site: Site) -> Iterator[Argument]:
    """The arrays in a call and in what is called, as far as its source looks them up."""
    node = site.node
    if not isinstance(node, ast.Call):
        return
    queue = [*node.args, *(each.value for each in node.keywords)]
    for source in queue:
        if isinstance(source, ast.Dict):
            queue += source.values
        yield from _arrays(source, evaluated(source, site.frame))
    for name in ast.walk(node.func):
        if isinstance(name, ast.Name):
            yield from _arrays(None, evaluated(name, site.frame))


def _arrays(source: ast.expr | None, value: PyTree) -> Iterator[Argument]:
    for path, leaf in tree_util.tree_flatten_with_path(value)[0]:
        if is_array(leaf) and kind(dtype_of(leaf)):
            yield Argument("", leaf, source, not path)
