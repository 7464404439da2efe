"""What JAX's messages say of the arguments of a call, as records: the table of messages.

A message is read here and nowhere else.
"""

import dataclasses
import re

import jax.numpy as jnp

from .._leaves.types import DType

_TYPE = r"(?:bool|u?int\d+|bfloat16|float[1-9]\w*|complex\d+)\b"
_REFUSED = rf"(?P<refused>{_TYPE})"
_WANTED = rf"(?P<wanted>{_TYPE})"
# The types of what a message refuses, where it does not say which.
_NAMED_TYPES = re.compile(rf"(?:dtype|got:?|type|as)[ =]({_TYPE})")
_FLOATS = frozenset(["bfloat16", "float16", "float32", "float64", "complex64"])
_SHORT_INTS = frozenset(["int2", "uint2", "int4", "uint4"])
_IN_64_BITS = {"float32": "float64", "complex64": "complex128"}

# The parameters that say where or which: their types have nothing to do with the others'.
_STARTS = frozenset(["start_index", "start_indices", "scatter_indices"])
_INDICES = _STARTS | {"index", "indices", "idx", "item", "segment_ids", "padding_config"}
_CHOICES = frozenset(["which", "pred", "condition", "init_val"])
_COUNTS = frozenset(["N", "M", "num", "reps", "repeats", "slice_size", "dimensions"])
_SIZES = _COUNTS | {"shape", "args", "newshape", "new_sizes", "index", "idx", "item"}
PLACES = _INDICES | _CHOICES
# What may be cast to an int and lose no more than an index or a size does.
WHOLE_NUMBERS = _INDICES | _SIZES | {"seed", "lower", "upper"}


@dataclasses.dataclass(frozen=True)
class Role:
    """What messages of one kind say.

    Attributes:
        pattern: with the type that is refused, the one wanted, and the parameter.
        wanted: the dtype that JAX takes; "alike" for arguments of one type.
        parameters: those that it is about; empty if it may be any.
        is_only: whether no other is meant where one of these parameters is there.
        is_checked: whether a function refuses what it looked up in the user's call.
        refused: the types that are refused where the message names none.
    """

    pattern: str
    wanted: str = ""
    parameters: frozenset[str] = frozenset()
    is_only: bool = False
    is_checked: bool = False
    refused: frozenset[str] = frozenset()


# The first that fits a message is its role.
ROLES = (
    Role(
        rf"expected tangent dtype {_WANTED}, but got tangent dtype {_REFUSED}",
        parameters=frozenset(["tangents"]),
        is_only=True,
    ),
    Role(rf"Invalid dtype for `swap`. Ref dtype: {_WANTED}. Value dtype: {_REFUSED}"),
    Role(rf"Dtype mismatch for .*: expected {_WANTED} and called with {_REFUSED}"),
    Role(
        "(?s)cotangent type does not match function output, expected "
        rf".*?{_WANTED}.*? but got .*?{_REFUSED}"
    ),
    Role(
        f"with holomorphic=True requires inputs with complex dtype, but got {_REFUSED}",
        "complex64",
    ),
    Role(
        r"must be integers of the same type, got:?(?:,? u?int\d+)+$",
        "alike",
        _INDICES,
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
        rf".*[Gg]ot (?:tangent aval )?~?{_REFUSED}.*? expected ~?{_WANTED}"
    ),
    Role("select `which` must be bool", "bool", PLACES, is_only=True),
    Role(
        "object cannot be interpreted as an integer|converted to a scalar index|"
        "integer or boolean arrays are valid indices|"
        "concrete values of integer type(?!(?s:.*)Tracer)|every element be an integer type",
        "int32",
        _SIZES,
        is_only=True,
    ),
    Role(r"^(?P<parameter>\w+) (argument to \w+ )?must (have|be) an integer", "int32"),
    Role(
        "Indexer must have integer|indices must (have an|be of) integer|must be integers|"
        "Index type must be an integer|must have an integer type|seed must be an integer",
        "int32",
        PLACES | {"seed", "reps", "repeats"},
    ),
    Role(
        "requires real-.*valued inputs|must have a floating dtype|primal dtype u?int|"
        "FFT input must be|does not accept dtype .* are (?:subtypes of )?.*float",
        "float32",
    ),
    Role("does not accept dtype .* are (?:subtypes of )?.*(integer|number)", "int32"),
    Role(
        "Input type must be an integer|only accepts integer dtypes|"
        "subtype of <class 'numpy.integer'>|subdtype of <class 'numpy.integer'>",
        "int32",
        is_checked=True,
        refused=_FLOATS,
    ),
    Role(
        "dtype argument to `.*` must be a float",
        "float32",
        is_checked=True,
        refused=_FLOATS,
    ),
    # NumPy's `sum` of a type that it has not heard of.
    Role("Invalid integer data type", "int32", is_checked=True, refused=_SHORT_INTS),
    Role(
        rf"^data type \W*(?:dtype|class)?\W*(?:numpy\.)?{_REFUSED}.* not "
        "(?:compatible with finfo|inexact)",
        "float32",
        is_checked=True,
    ),
)


@dataclasses.dataclass(frozen=True)
class Complaint:
    """What a message says of the arguments of a call.

    Attributes:
        refused: the types that it refuses; those of Python's numbers by their types.
        wanted: the dtype that is taken; None if arguments are to be alike.
        role: its row of the table.
        parameters: those that it is about; empty if it may be any.
    """

    refused: frozenset[str]
    wanted: DType | None
    role: Role
    parameters: frozenset[str] = frozenset()

    def refuses(self, dtype: DType) -> bool:
        """Returns whether a dtype is among the types."""
        return str(dtype) in self.refused


def complaint(message: str) -> Complaint | None:
    """Returns what a message says; None if it is about something else."""
    for role in ROLES:
        match = re.search(role.pattern, message)
        if match is not None:
            return _complaint_of_role(role, match, message)
    return None


def _complaint_of_role(role: Role, match: re.Match[str], text: str) -> Complaint | None:
    # Not every pattern has all of these.
    groups = match.groupdict()
    refused_type = groups.get("refused")
    wanted = groups.get("wanted") or role.wanted
    parameters = role.parameters
    if groups.get("parameter"):
        parameters |= {groups["parameter"]}
    if wanted == "alike":  # JAX writes those of Python's numbers `<class 'float'>`
        types = frozenset(re.findall(rf"{_TYPE}|(?<=<class ')\w+", text))
        return Complaint(types, None, role, parameters)
    if wanted == refused_type:
        return None  # they differ in something else, such as their shapes
    if wanted == "int32":  # the first that is none is refused
        types = [name for name in re.findall(_TYPE, text) if "int" not in name]
    elif refused_type:
        types = [refused_type]
    else:
        types = _NAMED_TYPES.findall(text)
    # A float64 that is made complex loses half of its digits in complex64.
    if refused_type in ("float64", "complex128"):
        wanted = _IN_64_BITS.get(wanted, wanted) if role.wanted else wanted
    refused = frozenset(types[:1]) or role.refused
    return Complaint(refused, jnp.dtype(wanted), role, parameters)


def complaint_of_a_package(message: str) -> Complaint | None:
    """Returns what the message of another library says of types; None if it names none.

    It is about types if it names two, or one and a class for all of a kind.
    """
    types = frozenset(re.findall(rf"\b{_TYPE}", message))
    names_kind = re.search("<class '(int|float|complex)'>", message) is not None
    if len(types) > 1 or (types and names_kind):
        return Complaint(types, None, Role("", is_checked=True))
    return None
