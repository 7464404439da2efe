"""The table of JAX's messages over types: what each says, and of which argument."""

import re
from typing import NamedTuple

import jax.numpy as jnp
from jax import dtypes

from .._leaves.types import DType

_TYPE = r"(?:bool|u?int\d+|bfloat16|float\d\w*|complex\d+)\b"
_GIVEN, _WANTED = rf"(?P<given>{_TYPE})", rf"(?P<wanted>{_TYPE})"
_KIND = r"(?P<given>(?:bool|u?int|bfloat|float|complex)\w*)"

# Arguments that say where or which: their types have nothing to do with the others'.
INDICES = {"index", "indices", "idx", "item", "start_index", "start_indices"}
INDICES |= {"scatter_indices", "segment_ids"}
CHOICES = {"which", "pred", "condition", "init_val"}
SIZES = {"shape", "args", "newshape", "new_sizes", "N", "M", "num", "reps", "repeats"}
SIZES |= {"slice_size", "index", "idx", "item", "dimensions"}


class Role(NamedTuple):
    """What a message says.

    Attributes:
        pattern: that the message has, with the type that was given and the one wanted.
        wanted: the dtype that JAX takes; "alike" if it wants arguments of one type.
        names: of the parameters of which it speaks; empty if it may be any.
        is_only: whether no other is meant where a parameter of such a name is there.
        is_result: whether it is about what a function returns.
    """

    pattern: str
    wanted: str = ""
    names: frozenset[str] = frozenset()
    is_only: bool = False
    is_result: bool = False


_WHERE = frozenset(INDICES | CHOICES)

# The first that fits an error is its role.
_ROLES = (
    Role(
        rf"cond_fun must return a boolean scalar, but got .*?\b{_KIND}\[\]",
        "bool",
        is_result=True,
    ),
    Role(
        rf"requires real-(?:valued| or complex-valued) outputs.* but got {_KIND}",
        "float32",
        is_result=True,
    ),
    Role(
        rf"Got primal dtype (?:bool|u?int)\d* and .*'float0'.* got tangent dtype {_GIVEN}",
        "float0",
        frozenset(["tangents"]),
        is_only=True,
    ),
    Role("Called .* with a (?P<given>float0) array", "float32"),
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
        "arguments to jax.jvp do not match|"
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
        "Index type must be an integer|must have an integer type|seed must be an integer|"
        "only accepts integer dtypes",
        "int32",
        _WHERE | {"seed", "dtype"},
    ),
    Role(
        "requires real-(valued| or complex-valued) inputs|a floating dtype|"
        "must be a float or complex dtype|must be a float dtype|FFT input must be|"
        "only real valued inputs|does not accept dtype .* are (?:subtypes of )?.*float",
        "float32",
    ),
    Role("does not accept dtype .* are (?:subtypes of )?.*(integer|number)", "int32"),
)
_REFUSED = re.compile(rf"(?:dtype|got:?|type|as)[ =]({_TYPE})")


class Complaint(NamedTuple):
    """What a message says of the arguments of a call, or of a result.

    Attributes:
        types: those that it names. Python's numbers have the names of their types.
        wanted: the dtype that JAX takes; None if it wants arguments alike.
        role: the row of the table.
        names: of the parameters of which it speaks.
    """

    types: frozenset[str]
    wanted: DType | None
    role: Role
    names: frozenset[str]


def complaint(message: str) -> Complaint | None:
    """What a message says; None if it is about something else."""
    for role in _ROLES:
        if found := re.search(role.pattern, message):
            named = found.groupdict()
            given, wanted = named.get("given"), named.get("wanted") or role.wanted
            parameter = frozenset(filter(None, [named.get("parameter")]))
            types = frozenset([given] if given else _refused(message, wanted))
            if wanted == "alike":  # JAX writes those of Python's numbers `<class 'float'>`
                types = frozenset(re.findall(rf"{_TYPE}|(?<=<class ')\w+", message))
                return Complaint(types, None, role, role.names)
            if "only real valued inputs" in message:  # which names no type
                types = frozenset(["complex64", "complex128"])
            if wanted == given:
                return None
            wanted = _as_wide(wanted, given or "", is_named="wanted" in named)
            return Complaint(types, wanted, role, role.names | parameter)
    return None


def _refused(message: str, wanted: str) -> list[str]:
    """The type that a message refuses: where it wants ints, the first that is none."""
    others = [x for x in re.findall(_TYPE, message) if "int" not in x]
    is_of_ints = wanted == "int32" and "does not accept" not in message
    return others[:1] if is_of_ints and others else _REFUSED.findall(message)[:1]


def _as_wide(wanted: str, given: str, *, is_named: bool) -> DType:
    """The dtype that is wanted of another one: as wide as that is."""
    if wanted == "float0":  # only a float has a tangent
        return jnp.dtype("float32") if is_named else dtypes.float0
    wide = {"float32": "float64", "complex64": "complex128"} if not is_named else {}
    is_wide = given in ("float64", "complex128")
    return jnp.dtype(wide.get(wanted, wanted) if is_wide else wanted)


_NAMED = re.compile(rf"\b{_TYPE}")
# Of `finfo` and `iinfo`, of which the latter names types by a letter.
KIND_NAMED = re.compile("not compatible with finfo|not inexact|Invalid integer data type")
_CLASS = re.compile("<class '(int|float|complex)'>")  # for all dtypes of a kind
_CHECKED = re.compile(r"(?s)Actual value: ([a-z]+)(\d*)\[.*?\nExpected type: ")
_FLOATS = frozenset(["bfloat16", "float16", "float32", "float64"])
OF_INDICES = re.compile("Input type must be an integer")


def named_types(message: str) -> frozenset[str]:
    """The dtypes that the message of another library names; none if it is not about types.

    It is if there are two, or one and a kind.
    """
    types = frozenset(_NAMED.findall(message))
    if checked := _CHECKED.search(message):  # by jaxtyping
        kinds = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "c": "complex"}
        return frozenset([kinds.get(checked[1], checked[1]) + checked[2]])
    if OF_INDICES.search(message) or KIND_NAMED.search(message):
        return types or _FLOATS
    return types if len(types) > 1 or _CLASS.search(message) else frozenset()


_COMPILED = re.compile(
    rf"Argument '(.*?)' compiled with ({_TYPE})\[\S*\] and called with ({_TYPE})\["
)


def compiled_for(message: str) -> dict[str, DType]:
    """The arguments of another dtype than a compiled function has, with that dtype."""
    found = _COMPILED.findall(message)
    return {path: jnp.dtype(old) for path, old, new in found if old != new}


_ADDED = re.compile(rf"^\(ShapedArray\(({_TYPE})\[.*?, ShapedArray\(({_TYPE})\[")
_RULE = re.compile(
    "Custom JVP rule must produce primal and tangent outputs with (?!.*tree)"
)


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
