"""What JAX's messages say of the arguments of a call, as records: the table of messages.

A message is read here and nowhere else.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp

from .._leaves.dtypes import dtype_of, is_python_number, kind, promoted
from .._leaves.types import DType, Leaf

_TYPE = r"(?:bool|u?int\d+|bfloat16|float[1-9]\w*|complex\d+)\b"
_WANTED = rf"(?P<wanted>{_TYPE})"
# The types that were given stand behind such a word, and those that are taken may not.
_GIVEN = re.compile(rf"(?:dtype|got|type|as|with)[:=]? ?({_TYPE})")
_SHORT_INTS = frozenset(["int2", "uint2", "int4", "uint4"])
_GRADIENTS_OF_INTS = frozenset([str(jax.dtypes.float0)])

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
        pattern: with the type that is wanted, and the parameter.
        wanted: the dtype that JAX takes; "alike" for arguments of one type.
        parameters: those that it is about; empty if it may be any.
        is_checked: whether a function refuses what it looked up in the user's call.
        refused: the types that are refused where the message names none.
    """

    pattern: str
    wanted: str = ""
    parameters: frozenset[str] = frozenset()
    is_checked: bool = False
    refused: frozenset[str] = frozenset()


# The first that fits a message is its role.
ROLES = (
    Role(
        f"expected tangent dtype {_WANTED}, but got tangent dtype",
        parameters=frozenset(["tangents"]),
    ),
    Role(f"Invalid dtype for `swap`. Ref dtype: {_WANTED}. Value dtype:"),
    Role(f"Dtype mismatch for .*: expected {_WANTED} and called with"),
    Role(
        "(?s)cotangent type does not match function output, expected "
        f".*?{_WANTED}.*? but got"
    ),
    Role("with holomorphic=True requires inputs with complex dtype", "complex64"),
    Role(
        r"must be integers of the same type, got:?(?:,? u?int\d+)+$",
        "alike",
        _INDICES,
    ),
    Role(
        "arguments to have the same dtypes|must be same dtype|"
        "two inexact dtypes must match|no available implicit dtype promotion path|"
        f"arguments to fori_loop must have equal types|dtype should be {_TYPE}, but got",
        "alike",
    ),
    Role(
        "(?s)(?:for argument to (?i:vjp) function|called on tangent values inconsistent)"
        f".*[Gg]ot .*? expected ~?{_WANTED}"
    ),
    Role("select `which` must be bool", "bool", PLACES),
    Role(
        "object cannot be interpreted as an integer|converted to a scalar index|"
        "integer or boolean arrays are valid indices|"
        "concrete values of integer type(?!(?s:.*)Tracer)|every element be an integer type",
        "int32",
        _SIZES,
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
    ),
    # NumPy's `sum` of a type that it has not heard of.
    Role("Invalid integer data type", "int32", is_checked=True, refused=_SHORT_INTS),
    Role("Called .* with a float0", "float32", is_checked=True, refused=_GRADIENTS_OF_INTS),
    Role(
        "dtype argument to `.*` must be a float|"
        "^data type .* not (?:compatible with finfo|inexact)",
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
        parameters: those that it is about; empty if it may be any.
        is_checked: whether a function refuses what it looked up in the user's call.
    """

    refused: frozenset[str]
    wanted: DType | None = None
    parameters: frozenset[str] = frozenset()
    is_checked: bool = False

    def refuses(self, value: Leaf) -> bool:
        """Returns whether a value has one of the types."""
        if type(value) is bool:  # an option of a function, such as `keepdims`
            return False
        dtype = dtype_of(value)
        is_unnamed = not self.refused or is_python_number(value)  # a number in 64 bits
        if is_unnamed and kind(self.wanted) in ("int", "bool"):
            return kind(dtype) == "float"
        # With x64 off, JAX takes an array of NumPy for one of 32 bits, and names its own.
        own_dtype = getattr(value, "dtype", dtype)
        return not self.refused.isdisjoint(
            [str(dtype), str(own_dtype), type(value).__name__]
        )


def complaint(message: str) -> Complaint | None:
    """Returns what a message says; None if it is about something else."""
    for role in ROLES:
        match = re.search(role.pattern, message)
        if match is not None:
            return _complaint_of_role(role, match)
    return None


def _complaint_of_role(role: Role, match: re.Match[str]) -> Complaint | None:
    groups = match.groupdict()  # not every pattern has both
    parameters = role.parameters
    if "parameter" in groups:
        parameters |= {groups["parameter"]}
    if role.wanted == "alike":  # JAX writes those of Python's numbers `<class 'float'>`
        types = re.findall(rf"{_TYPE}|(?<=<class ')\w+", match.string)
        return Complaint(frozenset(types), None, parameters)
    wanted = groups.get("wanted") or role.wanted
    types = _GIVEN.findall(match.string) or re.findall(_TYPE, match.string)
    refused = []
    for name in types:
        is_taken = name == wanted
        if wanted == "int32":
            is_taken = kind(jnp.dtype(name)) in ("int", "bool")
        if not is_taken:
            refused.append(name)
    if "wanted" in groups and not refused:
        return None  # they differ in something else, such as their shapes
    wanted_dtype = jnp.dtype(wanted)
    if role.wanted == "complex64":  # which loses half of the digits of a float64
        refused_dtype = jnp.dtype(refused[0])
        wanted_dtype = promoted(wanted_dtype, refused_dtype)
    types_refused = frozenset(refused[:1]) or role.refused
    return Complaint(types_refused, wanted_dtype, parameters, role.is_checked)


def complaint_of_a_package(message: str) -> Complaint | None:
    """Returns what the message of another library says of types; None if it names none.

    It is about types if it names two, or one and a class for all of a kind.
    """
    types = frozenset(re.findall(rf"\b{_TYPE}", message))
    names_kind = re.search("<class '(int|float|complex)'>", message) is not None
    if len(types) > 1 or (types and names_kind):
        return Complaint(types, is_checked=True)
    return None
