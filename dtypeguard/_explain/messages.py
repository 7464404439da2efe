"""What the messages of JAX say of the types of arguments and results.

JAX refuses arguments of different types (`lax.dynamic_update_slice`, strict promotion), of
another kind (a float as an index, an int under `grad`), and results of another kind (those
of a `cond_fun` or a loss). Its message tells these errors from all others.
"""

import re
from typing import NamedTuple

import jax.numpy as jnp
from jax import dtypes

from .._leaves.types import DType

_TYPE = r"(?:bool|u?int\d+|bfloat16|float\d\w*|complex\d+)\b"
_KIND = r"((?:bool|u?int|bfloat|float|complex)\w*)"
_CONDITION = re.compile(rf"cond_fun must return a boolean scalar, but got .*?\b{_KIND}\[\]")
_LOSS = re.compile(
    rf"requires real-(?:valued| or complex-valued) outputs.* but got {_KIND}"
)
_DIFFERENT = re.compile(
    "arguments to have the same dtypes|must be same dtype|two inexact dtypes must match|"
    "no available implicit dtype promotion path|arguments to jax.jvp do not match|"
    f"arguments to fori_loop must have equal types|dtype should be {_TYPE}, but got"
)
# What a cotangent or a tangent has to be.
_EXPECTED = re.compile(
    "(?s)(?:for argument to (?i:vjp) function|called on tangent values inconsistent).*"
    rf"[Gg]ot (?:tangent aval )?~?({_TYPE}).*? expected ~?({_TYPE})"
)
# What only `float0` is a tangent of.
_TANGENT = re.compile(
    rf"Got primal dtype (?:bool|u?int)\d* and .*'float0'.* got tangent dtype ({_TYPE})"
)
_HOLOMORPHIC = re.compile(
    rf"with holomorphic=True requires inputs with complex dtype, but got ({_TYPE})"
)
# What is written to a reference; what is given to an exported or a transposed function.
_GIVEN = re.compile(
    rf"Invalid dtype for `swap`. Ref dtype: ({_TYPE}). Value dtype: ({_TYPE})|"
    rf"Dtype mismatch for .*: expected ({_TYPE}) and called with ({_TYPE})|"
    rf"(?s:cotangent type does not match function output, expected .*?({_TYPE}).*?) but "
    rf"got .*?({_TYPE})"
)
_RULE = re.compile(
    "Custom JVP rule must produce primal and tangent outputs with (?!.*tree)"
)
_INTEGER = re.compile(
    "Indexer must have integer|indices must (have an|be of) integer|must be integers|"
    "Index type must be an integer|must have an integer type|seed must be an integer|"
    "only accepts integer dtypes"
)
# The indices of `dynamic_slice` and its like, if all are integers.
_INDICES = re.compile(r"must be integers of the same type, got:?((,? u?int\d+)+)$")
# A slice, a shape or a number of elements. What `jit` traces cannot be one.
_SIZE = re.compile(
    "object cannot be interpreted as an integer|converted to a scalar index|"
    "concrete values of integer type(?!(?s:.*)Tracer)|every element be an integer type"
)
_PARAMETER = re.compile(r"^(\w+) argument to \w+ must")
_BOOL = re.compile("select `which` must be bool")
_FLOAT = re.compile(
    r"requires real-(valued| or complex-valued) inputs|"
    "a floating dtype|must be a float or complex dtype|must be a float dtype|"
    "FFT input must be|only real valued inputs"
)
_ACCEPTED = re.compile(r"does not accept dtype .* are (?:subtypes of )?(.*?)\.?$")
_REFUSED = re.compile(rf"(?:dtype|got:?|type|as)[ =]({_TYPE})")


_NAMED = re.compile(rf"\b{_TYPE}")
# Of `finfo` and `iinfo`, of which the latter names types by a letter.
KIND_NAMED = re.compile("not compatible with finfo|not inexact|Invalid integer data type")
_FLOATS = frozenset(["bfloat16", "float16", "float32", "float64"])


_CLASS = re.compile("<class '(int|float|complex)'>")  # for all dtypes of a kind
_CHECKED = re.compile(r"(?s)Actual value: ([a-z]+)(\d*)\[.*?\nExpected type: ")


def named_types(message: str) -> frozenset[str]:
    """The dtypes that the message of another library names; none if it is not about types.

    It is if there are two, or one and a kind.
    """
    types = frozenset(_NAMED.findall(message))
    if checked := _CHECKED.search(message):  # by jaxtyping
        kinds = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "c": "complex"}
        return frozenset([kinds.get(checked[1], checked[1]) + checked[2]])
    if KIND_NAMED.search(message):
        return types or _FLOATS
    return types if len(types) > 1 or _CLASS.search(message) else frozenset()


def names_a_type(message: str) -> bool:
    """Whether a message is about types: it names one, in full or abbreviated."""
    return (
        re.search(rf"\b(?:{_TYPE}|b?f(?:16|32|64)|[iuc]\d+)\b|dtype", message) is not None
    )


_COMPILED = re.compile(
    rf"Argument '(.*?)' compiled with ({_TYPE})\[\S*\] and called with ({_TYPE})\["
)


def compiled_for(message: str) -> dict[str, DType]:
    """The arguments of another dtype than a compiled function has, with that dtype."""
    found = _COMPILED.findall(message)
    return {path: jnp.dtype(old) for path, old, new in found if old != new}


_ADDED = re.compile(rf"^\(ShapedArray\(({_TYPE})\[.*?, ShapedArray\(({_TYPE})\[")


def added(message: str) -> frozenset[str]:
    """The dtypes of two cotangents that JAX cannot add up."""
    found = _ADDED.match(message)
    return frozenset(found.groups() if found else ())


def is_of_rule(message: str) -> bool:
    """Whether a rule of `custom_jvp` returned a tangent of another type than it is to."""
    return _RULE.search(message) is not None and len(named_types(message)) == 2


class Lowered(NamedTuple):
    """What JAX cannot lower, since a part of it has another x64 flag.

    Attributes:
        name: of the function.
        types: the dtypes that it returns, and that it was to return.
        file: of the line that calls it.
        line: its number.
    """

    name: str
    types: tuple[DType, DType]
    file: str
    line: int


_LOWERED = re.compile(
    r"(?s)Cannot lower jaxpr with verifier errors.*?tensor<(?:\d+x)*([iuf])(32|64)>.*?"
    r"tensor<(?:\d+x)*\1(32|64)>.*?in function @(\w+).*?\"([^\"\n]+)\":(\d+):"
)


def lowered(message: str) -> Lowered | None:
    """What JAX cannot lower; None if the message is about something else."""
    if (found := _LOWERED.search(message)) is None or found[2] == found[3]:
        return None
    name = {"i": "int", "u": "uint", "f": "float"}[found[1]]
    types = jnp.dtype(name + found[2]), jnp.dtype(name + found[3])
    return Lowered(found[4], types, found[5], int(found[6]))


_UNSUPPORTED = re.compile(rf"Unsupported dtype ({_TYPE})")


def unsupported(message: str) -> DType | None:
    """The dtype for which LAPACK has no routine; None if it is about something else."""
    found = _UNSUPPORTED.search(message)
    return jnp.dtype(found[1]) if found else None


class Complaint(NamedTuple):
    """What a message says.

    Attributes:
        types: those that it names. Python's numbers have the names of their types.
        wanted: the dtype that JAX takes; None if it wants arguments alike.
        is_place: whether an argument that says where or whether may be at fault.
        is_size: whether only a size may be.
        is_result: whether it is about what a function returns.
        option: the keyword for which JAX wants that dtype.
        parameter: that the message names; empty if it names none.
    """

    types: frozenset[str]
    wanted: DType | None = None
    is_place: bool = False
    is_size: bool = False
    is_result: bool = False
    option: str = ""
    parameter: str = ""


def complaint(message: str) -> Complaint | None:
    """What a message says of types; None if it is about something else."""
    for pattern, wanted in ((_CONDITION, "bool"), (_LOSS, "float32")):
        if result := pattern.search(message):
            is_wide = result[1] in ("float64", "complex128")
            dtype = jnp.dtype("float64" if is_wide and wanted != "bool" else wanted)
            return Complaint(frozenset(result.groups()), dtype, is_result=True)
    if tangent := _TANGENT.search(message):
        return Complaint(frozenset(tangent.groups()), dtypes.float0)
    if given := _GIVEN.search(message):
        wanted, was = filter(None, given.groups())
        return Complaint(frozenset([was]), jnp.dtype(wanted)) if was != wanted else None
    if real := _HOLOMORPHIC.search(message):
        wanted = "complex128" if real[1].endswith("64") else "complex64"
        types = frozenset(real.groups())
        return Complaint(types, jnp.dtype(wanted), option="holomorphic")
    are_indices = _INDICES.search(message) is not None
    if are_indices or _DIFFERENT.search(message):
        # JAX writes the types of Python's numbers as `<class 'float'>`.
        types = re.findall(rf"{_TYPE}|(?<=<class ')\w+", message)
        return Complaint(frozenset(types), is_place=are_indices)
    expected = _EXPECTED.search(message)
    if expected and expected[1] != expected[2]:
        # Only a float has a tangent.
        wanted = expected[2].replace("float0", "float32")
        return Complaint(frozenset([expected[1]]), jnp.dtype(wanted))
    refused = _REFUSED.findall(message)[:1]
    is_bool = _BOOL.search(message) is not None
    if refused and is_bool:
        return Complaint(frozenset(refused), jnp.dtype(bool), is_place=True)
    is_size = _SIZE.search(message) is not None
    is_place = is_size or _INTEGER.search(message) is not None
    accepted = (_ACCEPTED.search(message) or ("", ""))[1]
    is_float = _FLOAT.search(message) or "float" in accepted
    if not (is_float or is_place or "integer" in accepted or "number" in accepted):
        return None
    named = [name for name in re.findall(_TYPE, message) if "int" not in name]
    types = frozenset((named[:1] if is_place else []) or refused)
    if "only real valued inputs" in message:  # which names no type
        types = frozenset(["complex64", "complex128"])
    wanted = jnp.dtype("float32" if is_float else "int32")
    named = _PARAMETER.search(message)
    parameter = named[1] if named else ""
    return Complaint(types, wanted, is_place or is_bool, is_size, parameter=parameter)
