"""Writes the casts that an error over arguments or a result asks for, as source."""

import ast
from collections.abc import Sequence
from types import CodeType
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import dtype_of, is_python_number, kind, rank
from .._leaves.rows import array_text, cast_text, dtype_text, lost
from .._leaves.types import DType
from .._lines.sites import Argument
from .._source.assigned import assigned_value
from .._source.files import line_text
from .._source.origin import Origin
from .._source.syntax import statement, text_of
from .written import atom, called, is_atom

_LONG = 60  # an expression with more characters is not written out


class ArgumentCast(NamedTuple):
    """An argument that is to have another dtype; that of a model, if it has one's text."""

    argument: Argument
    dtype: DType
    model: str = ""


def cast_in_map(line: Origin, cause: Origin | None) -> str:
    """A cast in the lambda of a `tree.map` on a line; empty if none is to be written.

    The tree that the cause made is the wide one; the cast is to the types of the other, or
    of the one that the function was given.

    Args:
        line: that promotes leaves.
        cause: of their promotion.
    """
    node = statement(line.file, line.line)
    calls = [x for x in (ast.walk(node) if node else ()) if isinstance(x, ast.Call)]
    is_own = lambda x: isinstance(x.func, ast.Name) and x.func.id == "map"  # Python's
    maps = [x for x in calls if called(x) in ("map", "tree_map") and not is_own(x)]
    maps = [x for x in maps if len(x.args) == 3]
    function = maps[0].args[0] if len(maps) == 1 else None
    if not isinstance(function, ast.Lambda) or cause is None:
        return ""
    names = [each.arg for each in function.args.args]
    own = {cause.users.function.rpartition(".")[2]}
    if line.function.startswith(cause.users.function):  # else its variables are others
        made = statement(cause.users.file, cause.users.line)
        own |= {name for y in getattr(made, "targets", ()) for name in _names(y)}
    is_wide = lambda tree: not own.isdisjoint(_names(tree))
    pairs = [pair for pair in zip(names, maps[0].args[1:]) if not is_wide(pair[1])]
    if len(pairs) > 1:  # what came in
        is_given = lambda x: (
            isinstance(x, ast.Name) and assigned_value(line.file, x.id, line.line) is None
        )
        pairs = [pair for pair in pairs if is_given(pair[1])]
    narrow = [name for name, _ in pairs]
    text = text_of(function.body, line.file)
    if len(narrow) != 1 or len(text) > _LONG:
        return ""
    new = f"{atom(function.body, text)}.astype({narrow[0]}.dtype)"
    return f"at {line} write {new} in place of {text}"


def _names(node: ast.AST) -> list[str]:
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]


def like_others(
    casts: Sequence[ArgumentCast], named: Sequence[Argument], code: CodeType
) -> list[ArgumentCast]:
    """The casts in a lambda, which may get leaves of other types: to those of another one.

    Args:
        casts: of some arguments, to one dtype.
        named: all arguments that are to meet.
        code: of the function with the call.
    """
    names = code.co_varnames[: code.co_argcount] * (code.co_name == "<lambda>")
    own = [x for x in named if getattr(x.source, "id", None) in names]

    def model(cast: ArgumentCast) -> str:
        texts = [x.text for x in own if dtype_of(x.value) == cast.dtype]
        return texts[0] if texts and any(cast.argument is x for x in own) else ""

    return [cast._replace(model=model(cast)) for cast in casts]


def casts_to_meet(
    arguments: Sequence[Argument], forced: Sequence[Argument]
) -> list[list[ArgumentCast]]:
    """The casts after which some arguments have one dtype: the best way and another.

    Args:
        arguments: of different dtypes.
        forced: those that a promotion gave their dtype.
    """
    dtypes = list(dict.fromkeys(dtype_of(argument.value) for argument in arguments))
    kept = next((each for each in arguments if _is_kept(each, arguments)), None)
    if kept is not None:
        targets = [dtype_of(kept.value)]
    elif {argument.base for argument in arguments} <= {"lower", "upper"}:
        targets = [jnp.dtype("int32")]
    elif len({kind(dtype) for dtype in dtypes}) > 1:
        targets = [max(dtypes, key=rank)]
    else:
        narrow, *_, wide = sorted(dtypes, key=lambda dtype: dtype.itemsize)
        targets = [wide, narrow]
        promoted = {dtype_of(argument.value) for argument in forced}
        is_float = kind(wide) != "int"  # a narrower int wraps
        if (promoted == {wide} and is_float) or wide.itemsize == 8:
            targets = [narrow, wide]
    ways = [
        [ArgumentCast(each, to) for each in arguments if dtype_of(each.value) != to]
        for to in targets
    ]
    return [way for way in ways if all(cast.argument.source for cast in way)] or ways[:1]


def _is_kept(argument: Argument, others: Sequence[Argument]) -> bool:
    """Whether an argument keeps its type: it is written to, or it is clamped."""
    if argument.base in ("operand", "array", "primals"):
        return True
    return argument.base == "x" and {each.base for each in others} & {"min", "max"} != set()


def cast_of_users(
    refused: Sequence[Argument], given: Sequence[Argument], wanted: DType | None
) -> ArgumentCast | None:
    """What to cast in the user's own call of a package in which some arguments differ.

    The cast after which no leaf of the call has the dtype that was cast.

    Args:
        refused: the arguments that JAX refused, in the package.
        given: what the user's call gives to the package.
        wanted: what JAX wants; None if it wants them alike.
    """
    dtypes = list(dict.fromkeys(dtype_of(argument.value) for argument in refused))
    if not {dtype_of(argument.value) for argument in given}.issuperset(dtypes):
        return None  # some come from elsewhere
    for argument in sorted(given, key=lambda x: not x.is_whole):  # single arrays first
        own = dtype_of(argument.value)
        others = [dtype_of(x.value) for x in given if x.source is not argument.source]
        to = [dtype for dtype in dtypes if dtype != own] if wanted is None else [wanted]
        if argument.source is not None and own in dtypes and to and own not in others:
            return ArgumentCast(argument, to[0])
    return None


def sentence(casts: Sequence[ArgumentCast], file: str, node: ast.AST | None) -> str:
    """What to write for casts that go together, a cast a line."""
    # One cast for each expression: that of a container casts all its leaves.
    one = {cast.argument.source or cast.argument.name: cast for cast in casts}
    written = dict.fromkeys(_sentence(cast, file, node) for cast in one.values())
    return ".\nAnd ".join(written)


def _sentence(cast: ArgumentCast, file: str, node: ast.AST | None) -> str:
    argument, dtype, _ = cast
    source = argument.source
    is_array = not isinstance(argument.value, np.dtype)
    is_exact = not is_array or _is_whole(argument, dtype)
    loss = "" if is_exact else lost(dtype_of(argument.value), dtype)
    if source is None or not source.lineno:
        new = written(argument._replace(text="x"), dtype)
        return f"cast the argument {argument.name}: {new}{loss}"
    old = argument.text
    new = written(*cast[:2], cast.model)
    if isinstance(node, ast.AugAssign) and source is node.target:
        changed, right = ast.unparse(node), ast.unparse(node.value)
        sign = changed.removeprefix(old).removesuffix(right).strip().removesuffix("=")
        old, new = changed, f"{old} = {new} {sign} {atom(node.value, right)}"
    return f"at {line_text(file, source.lineno)} write {new} in place of {old}{loss}"


def _is_whole(argument: Argument, dtype: DType) -> bool:
    """Whether an int is written out where a float is to be, which has it exactly."""
    number = getattr(argument.source, "value", None)
    is_written = isinstance(argument.source, ast.Constant) and type(number) is int
    return (
        is_written and kind(dtype) == "float" and int(float(dtype.type(number))) == number
    )


def written(argument: Argument, dtype: DType, model: str = "") -> str:
    """The expression of an argument with a cast: to a dtype, or to that of a model."""
    if isinstance(argument.value, np.dtype):
        return dtype_text(dtype)
    value, old, text = argument.value, dtype_of(argument.value), argument.text
    if model:
        return f"{text}.astype({model}.dtype)"
    if is_python_number(value) and not argument.is_whole and kind(dtype) == "int":
        return f"tuple(map(int, {text}))" if argument.source else f"int({text})"
    if not argument.is_whole:
        own = getattr(value, "dtype", old)  # of NumPy's arrays that of 64 bits
        is_it = f'getattr(x, "dtype", None) == {dtype_text(own)}'
        return f"jax.tree.map(lambda x: {cast_text(dtype)} if {is_it} else x, {text})"
    if _is_whole(argument, dtype):
        return repr(float(text))
    if is_python_number(value) or isinstance(argument.source, ast.Constant):
        return f"int({text})" if kind(dtype) == "int" else array_text(dtype, text)
    return cast_text(dtype, text, old, is_atom=is_atom(argument.source))
