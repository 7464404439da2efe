"""The table of JAX's messages over types: what each says, and of which argument."""

import re
from typing import NamedTuple

import jax.numpy as jnp

from .._leaves.types import DType

_TYPE = r"(?:bool|u?int\d+|bfloat16|float[1-9]\w*|complex\d+)\b"
_GIVEN, _WANTED = rf"(?P<given>{_TYPE})", rf"(?P<wanted>{_TYPE})"

# Arguments that say where or which: their types have nothing to do with the others'.
INDICES = {"index", "indices", "idx", "item", "start_index", "start_indices"}
INDICES |= {"scatter_indices", "segment_ids"}
CHOICES = {"which", "pred", "condition", "init_val"}
SIZES = {"shape", "args", "newshape", "new_sizes", "N", "M", "num", "reps", "repeats"}
SIZES |= {"slice_size", "index", "idx", "item", "dimensions"}
_WHERE = frozenset(INDICES | CHOICES)


class Role(NamedTuple):
    """What a message says.

    Attributes:
        pattern: that the message has, with the type that was given, the one wanted, and
            the parameter.
        wanted: the dtype that JAX takes; "alike" if it wants arguments of one type.
        names: of the parameters of which it speaks; empty if it may be any.
        is_only: whether no other is meant where a parameter of such a name is there.
        is_checked: whether another library refuses what the user's call has.
    """

    pattern: str
    wanted: str = ""
    names: frozenset[str] = frozenset()
    is_only: bool = False
    is_checked: bool = False


# The first that fits an error is its role.
_ROLES = (
    Role(
        rf"Argument '(?P<parameter>.*?)' compiled with {_WANTED}\[\S*\] and called with "
        rf"(?!(?P=wanted)\W){_GIVEN}\[",
    ),
    Role(
        rf"expected tangent dtype {_WANTED}, but got tangent dtype {_GIVEN}",
        names=frozenset(["tangents"]),
        is_only=True,
    ),
    Role(rf"Invalid dtype for `swap`. Ref dtype: {_WANTED}. Value dtype: {_GIVEN}"),
    Role(rf"Dtype mismatch for .*: expected {_WANTED} and called with {_GIVEN}"),
    Role(
        "(?s)cotangent type does not match function output, expected "
        rf".*?{_WANTED}.*? but got .*?{_GIVEN}"
    ),
    Role(
        f"with holomorphic=True requires inputs with complex dtype, but got {_GIVEN}",
        "complex64",
    ),
    Role(
        r"must be integers of the same type, got:?(?:,? u?int\d+)+$",
        "alike",
        frozenset(INDICES),
        is_only=True,
    ),
    Role(
        "arguments to have the same dtypes|must be same dtype|"
        "two inexact dtypes must match|no available implicit dtype promotion path|"
        f"arguments to fori_loop must have equal types|dtype should be {_TYPE}, but got",
        "alike",
    ),
    Role(
        "(?s)(?:for argument to (?i:vjp) function|called on tangent values inconsistent)"
        rf".*[Gg]ot (?:tangent aval )?~?{_GIVEN}.*? expected ~?{_WANTED}"
    ),
    Role("select `which` must be bool", "bool", _WHERE, is_only=True),
    Role(
        "object cannot be interpreted as an integer|converted to a scalar index|"
        "concrete values of integer type(?!(?s:.*)Tracer)|every element be an integer type",
        "int32",
        frozenset(SIZES),
        is_only=True,
    ),
    Role(r"^(?P<parameter>\w+) argument to \w+ must have an integer type", "int32"),
    Role(
        "Indexer must have integer|indices must (have an|be of) integer|must be integers|"
        "Index type must be an integer|must have an integer type|seed must be an integer",
        "int32",
        _WHERE | {"seed"},
    ),
    Role(
        "requires real-(valued| or complex-valued) inputs|must have a floating dtype|"
        "FFT input must be|does not accept dtype .* are (?:subtypes of )?.*float",
        "float32",
    ),
    Role("does not accept dtype .* are (?:subtypes of )?.*(integer|number)", "int32"),
    Role(
        "Input type must be an integer|only accepts integer dtypes",
        "int32",
        is_checked=True,
    ),
    Role("dtype argument to `.*` must be a float", "float32", is_checked=True),
)
_REFUSED = re.compile(rf"(?:dtype|got:?|type|as)[ =]({_TYPE})")
_FLOATS = frozenset(["bfloat16", "float16", "float32", "float64", "complex64"])
_IN_64_BITS = {"float32": "float64", "complex64": "complex128"}


class Complaint(NamedTuple):
    """What a message says of the arguments of a call, by a row of the table."""

    types: frozenset[str]  # those that it names; of Python's numbers their types
    wanted: DType | None  # None if arguments are to be alike
    role: Role
    names: frozenset[str] = frozenset()  # of parameters, or the path of an argument


def complaint(message: str) -> Complaint | None:
    """What a message says; None if it is about something else."""
    matches = ((role, re.search(role.pattern, message)) for role in _ROLES)
    role, found = next((pair for pair in matches if pair[1]), (None, None))
    if role is None or found is None:
        return None
    named = found.groupdict()
    given, wanted = named.get("given"), named.get("wanted") or role.wanted
    names = role.names | {*filter(None, [named.get("parameter")])}
    if wanted == "alike":  # JAX writes those of Python's numbers `<class 'float'>`
        types = frozenset(re.findall(rf"{_TYPE}|(?<=<class ')\w+", message))
        return Complaint(types, None, role, names)
    types = [given] if given else _REFUSED.findall(message)
    if wanted == "int32":  # the first that is none is refused
        types = [x for x in re.findall(_TYPE, message) if "int" not in x]
    if "wanted" not in named and given in _IN_64_BITS.values():
        wanted = _IN_64_BITS.get(wanted, wanted)
    refused = frozenset(types[:1] or (_FLOATS if role.is_checked else ()))
    return None if wanted == given else Complaint(refused, jnp.dtype(wanted), role, names)


def checked(message: str) -> Complaint | None:
    """What the message of another library says of types; None if it names none.

    It is about types if it names two, or one and a class for all of a kind.
    """
    types = frozenset(re.findall(rf"\b{_TYPE}", message))
    is_of_types = len(types) > 1 or re.search("<class '(int|float|complex)'>", message)
    return (
        Complaint(types, None, Role("", is_checked=True)) if types and is_of_types else None
    )
