"""Notes on errors over operands: where each got its type, and what to cast.

JAX refuses arguments of different types (`lax.dynamic_update_slice`, strict promotion), of
another kind (a float as an index, an int under `grad`), and results of another kind (those
of a `cond_fun` or a loss). Its message tells these errors from all others: an error with
another message has no note.
"""

import ast
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from .._leaves.dtypes import dtype_of, is_array, is_python_number, kind
from .._leaves.files import is_installed, package
from .._leaves.rows import type_text
from .._leaves.types import DType, Leaf
from .._program.origins import Origin, frame_of, is_update, places
from .._program.source import text_of
from .casts import Cast, casts_of_users, casts_to_meet, sentences
from .made import Makers
from .notes import note_text
from .results import refused_result, result_note
from .sites import Argument, Site, arguments, sites, users_sites

_TYPE = r"(?:bool|u?int\d+|bfloat16|float\d\w*|complex\d+)\b"
_DIFFERENT = re.compile(
    "arguments to have the same dtypes|must be same dtype|two inexact dtypes must match|"
    "no available implicit dtype promotion path|arguments to jax.jvp do not match|"
    f"arguments to fori_loop must have equal types|dtype should be {_TYPE}, but got"
)
# What a cotangent or a tangent has to be.
_EXPECTED = re.compile(
    "(?s)(?:for argument to VJP function|called on tangent values inconsistent).*"
    rf"[Gg]ot (?:tangent aval )?({_TYPE}).*? expected ({_TYPE})"
)
_INTEGER = re.compile(
    "Indexer must have integer|indices must (have an|be of) integer|must be integers|"
    "Index type must be an integer|must have an integer type|seed must be an integer"
)
# The indices of `dynamic_slice` and its like, if all are integers.
_INDICES = re.compile(r"must be integers of the same type, got:?((,? u?int\d+)+)$")
# A slice, a shape or a number of elements. What `jit` traces cannot be one.
_SIZE = re.compile(
    "object cannot be interpreted as an integer|converted to a scalar index|"
    "concrete values of integer type(?!(?s:.*)Tracer)|every element be an integer type"
)
_BOOL = re.compile("select `which` must be bool")
_FLOAT = re.compile(r"requires real-(valued| or complex-valued) inputs|a floating dtype")
_ACCEPTED = re.compile(r"does not accept dtype .* are (?:subtypes of )?(.*?)\.?$")
_REFUSED = re.compile(rf"(?:dtype|got:?|type|as)[ =]({_TYPE})")
# Arguments that say where or whether: their types have nothing to do with the others'.
_PLACES = {
    "index",
    "indices",
    "idx",
    "item",
    "start_index",
    "start_indices",
    "scatter_indices",
    "segment_ids",
}
_CHOICES = {"which", "pred", "condition", "init_val"}
_NOT_OPERANDS = _PLACES | _CHOICES
_SIZES = {"shape", "args", "newshape", "new_sizes", "N", "M", "num", "reps", "repeats"}
_SIZES |= {"slice_size", "index", "idx", "item", "dimensions"}


class Operand(NamedTuple):
    """An argument, the line that gave it its type, and the line that forced that."""

    argument: Argument
    origin: Origin | None
    cause: Origin | None


def is_about_operands(message: str) -> bool:
    """Whether a message is one of those that this file explains."""
    return bool(
        _DIFFERENT.search(message) or _refusal(message)[1] or refused_result(message)
    )


def operands_note(error: BaseException, message: str) -> str | None:
    """A note on an error over operands; None if it finds none that are at fault.

    Args:
        error: as it was raised, with JAX's own frames in its traceback.
        message: of the error.
    """
    passed = sites(error.__traceback__)
    if not passed or not passed[-1].inside:
        return None  # JAX has not raised it
    site = passed[-1]
    result = refused_result(message)
    if result is not None:
        return result_note(error, site, result)
    wanted: DType | None = None
    if _DIFFERENT.search(message) or _INDICES.search(message):
        named = _different(site, message)
    else:
        refused, wanted = _refusal(message)
        named = _refused(site, refused, message)
    if not named:
        return None
    makers = Makers(error)
    operands = [Operand(each, *makers.of(each, site)[:2]) for each in named]
    name = site.name or "a call"
    some = "an argument" if len(named) == 1 else "arguments"
    return note_text(
        f"the arguments of {name} have different types."
        if wanted is None
        else f"{name} has {some} of a type that it does not accept.",
        [
            (_label(each.argument, site), _type(each.argument.value), *places(*each[1:]))
            for each in operands
        ],
        operands,
        (str(dtype_of(each.argument.value)) for each in operands),
        _advice(operands, passed, wanted),
    )


def _different(site: Site, message: str) -> list[Argument]:
    """The arguments of those types that a message names.

    JAX writes the types of Python's numbers as `<class 'float'>`.
    """
    types = set(re.findall(rf"{_TYPE}|(?<=<class ')\w+", message))
    are_places = _INDICES.search(message) is not None
    for found in arguments(site):
        named = [
            each
            for each in found
            if _names(each.value) & types
            and (each.base in _PLACES if are_places else each.base not in _NOT_OPERANDS)
        ]
        # A Python number may be an option, such as an axis.
        arrays = [each for each in named if not is_python_number(each.value)]
        if types <= {str(dtype_of(each.value)) for each in arrays}:
            named = arrays
        if len({dtype_of(each.value) for each in named}) > 1:
            return named
    return []


def _refusal(message: str) -> tuple[str, DType | None]:
    """The dtype that JAX refuses, and one that it takes; None for another message."""
    expected = _EXPECTED.search(message)
    if expected and expected[1] != expected[2]:
        return expected[1], jnp.dtype(expected[2])
    refused = _REFUSED.search(message)
    if refused and _BOOL.search(message):
        return refused[1], jnp.dtype(bool)
    accepted = _ACCEPTED.search(message)
    is_place = _INTEGER.search(message) or _SIZE.search(message)
    is_integer = is_place or (accepted and "integer" in accepted[1])
    is_float = _FLOAT.search(message) or (accepted and "float" in accepted[1])
    if is_float or is_integer or (accepted and "number" in accepted[1]):
        types = [each for each in re.findall(_TYPE, message) if "int" not in each]
        found = types[0] if is_place and types else refused[1] if refused else ""
        return found, jnp.dtype("float32" if is_float else "int32")
    return "", None


def _refused(site: Site, refused: str, message: str) -> list[Argument]:
    """The arguments of a type that JAX refuses.

    Args:
        site: the call.
        refused: the dtype; empty if the message does not name it.
        message: of the error. It tells whether only an index or a size may be at fault.
    """
    is_size = _SIZE.search(message) is not None
    is_place = is_size or bool(_INTEGER.search(message) or _BOOL.search(message))
    places = _SIZES if is_size else _PLACES | _CHOICES
    for found in arguments(site):
        named = [
            each
            for each in found
            if type(each.value) is not bool and _is_refused(each.value, refused, is_place)
        ]
        if is_size or (is_place and any(each.base in places for each in found)):
            named = [each for each in named if each.base in places]
        if named := _differentiated(site, named):
            return named
    return []


def _is_refused(value: Leaf, refused: str, is_place: bool) -> bool:
    is_float = kind(dtype_of(value)) == "float"
    if is_place and (not refused or is_python_number(value)):  # a number in 64 bits
        return is_float
    return str(dtype_of(value)) == refused


def _differentiated(site: Site, named: list[Argument]) -> list[Argument]:
    """Of the arguments of a function under `grad` those that it is differentiated in."""
    for frame in site.inside:
        numbers, given = map(frame.f_locals.get, ("argnums", "args"))
        if numbers is not None and given:
            numbers = (numbers,) if isinstance(numbers, int) else numbers
            positions = {each % len(given) for each in numbers}  # -1 is the last
            return [each for each in named if each.position in positions]
    return named


def _advice(
    operands: Sequence[Operand], passed: Sequence[Site], wanted: DType | None
) -> list[str]:
    """What to write; first what would mend the cause."""
    site, named = passed[-1], [each.argument for each in operands]
    if not is_installed(site.file):
        forced = [each.argument for each in operands if each.cause]
        ways = casts_to_meet(named, forced) if wanted is None else []
        return list(sentences(ways or [[Cast(each, wanted) for each in named]], site))
    guard = []
    if is_update(frame_of(each.frame) for each in passed):
        guard = ["Wrap the optimizer: dtypeguard.guard(opt)."]
    for users in users_sites(passed):  # the user's call of the package
        if casts := casts_of_users(named, users, wanted):
            return [*guard, *sentences([casts], users)]
    others = [f"Give {package(site.file)} arrays of one type."] if wanted is None else []
    return guard or others


def _label(argument: Argument, site: Site) -> str:
    """The name of an argument, and its expression if that says more."""
    text = text_of(argument.source, site.file) if argument.source is not None else ""
    if not argument.is_whole or not text or len(text) > 40 or text == argument.name:
        return argument.name
    if argument.base in ("self", "other"):
        return text
    name = "index" if isinstance(site.node, ast.Subscript) else argument.name
    return f"{name} = {text}"


def _type(value: Leaf) -> str:
    if is_python_number(value):
        return type(value).__name__
    return type_text(value)


def _names(value: Leaf) -> set[str]:
    """How messages call the type of a value. An option of a function is a bool."""
    if type(value) is bool or not (is_array(value) or is_python_number(value)):
        return set()
    return {str(dtype_of(value)), type(value).__name__}
