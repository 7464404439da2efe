"""Finds the arguments of a call that are refused, by the table of JAX's messages."""

import ast
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from .._blame.provenance import of_argument
from .._leaves.dtypes import dtype_of, is_python_number, kind
from .._leaves.types import DType
from .._source.files import is_installed, is_users
from .._tracebacks.path_text import parameter
from .._tracebacks.sites import Argument, Site, arguments, written_in
from .finding import Failure, Finding, RefusedCall, RefusedLeaf

_TYPE = r"(?:bool|u?int\d+|bfloat16|float[1-9]\w*|complex\d+)\b"
_GIVEN, _WANTED = rf"(?P<given>{_TYPE})", rf"(?P<wanted>{_TYPE})"

# Arguments that say where or which: their types have nothing to do with the others'.
_INDICES = {"index", "indices", "idx", "item", "start_index", "start_indices"}
_INDICES |= {"scatter_indices", "segment_ids", "padding_config"}
_CHOICES = {"which", "pred", "condition", "init_val"}
_SIZES = {"shape", "args", "newshape", "new_sizes", "N", "M", "num", "reps", "repeats"}
_SIZES |= {"slice_size", "index", "idx", "item", "dimensions"}
_WHERE = frozenset(_INDICES | _CHOICES)
# What may be cast to an int and lose no more than an index or a size does.
_WHOLE = _INDICES | _SIZES | {"seed", "lower", "upper"}


class Role(NamedTuple):
    """What a message says."""

    pattern: str  # with the type that was given, the one wanted, and the parameter
    wanted: str = ""  # the dtype that JAX takes; "alike" for arguments of one type
    names: frozenset[str] = frozenset()  # of parameters; empty if it may be any
    is_only: bool = False  # whether no other is meant where one of such a name is there
    is_checked: bool = False  # whether another library refuses what the user's call has


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
        frozenset(_INDICES),
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
        frozenset(_SIZES),
        is_only=True,
    ),
    Role(r"^(?P<parameter>\w+) (argument to \w+ )?must (have|be) an integer", "int32"),
    Role(
        "Indexer must have integer|indices must (have an|be of) integer|must be integers|"
        "Index type must be an integer|must have an integer type|seed must be an integer",
        "int32",
        _WHERE | {"seed"},
    ),
    Role(
        "requires real-.*valued inputs|must have a floating dtype|primal dtype u?int|"
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
    if given in ("float64", "complex128") and role.wanted:
        wanted = {"float32": "float64", "complex64": "complex128"}.get(wanted, wanted)
    refused = frozenset(types[:1] or (_FLOATS if role.is_checked else ()))
    return None if wanted == given else Complaint(refused, jnp.dtype(wanted), role, names)


def checked(message: str) -> Complaint | None:
    """What the message of another library says of types; None if it names none.

    It is about types if it names two, or one and a class for all of a kind.
    """
    types = frozenset(re.findall(rf"\b{_TYPE}", message))
    is_of_kind = types and re.search("<class '(int|float|complex)'>", message)
    about = Complaint(types, None, Role("", is_checked=True))
    return about if len(types) > 1 or is_of_kind else None


def find_arguments(failure: Failure, about: Complaint) -> Finding | None:
    """The arguments of a call that JAX refuses."""
    names = [frame.f_code.co_name for frame in failure.frames]
    if not failure.is_of_jax or any(x.startswith("backward_pass") for x in names):
        return None  # or the rule of a derivative has returned what cannot be added
    site = failure.sites[-1]
    find = _different if about.wanted is None else _refused_arguments
    refused = next(filter(None, (find(x, about, site) for x in arguments(site))), [])
    keeps = not {x.base for x in refused} <= _WHOLE | about.names
    call = RefusedCall(
        about.wanted,
        site,
        is_only_for_ints=keeps and kind(about.wanted) == "int",
        has_floats_beside=_has_floats_beside(refused, site),
    )
    note = _found(call, [(_label(x, site), x) for x in refused])
    is_lost = is_installed(site.file) and note and not any(x.why.root for x in note.leaves)
    users = find_checked(failure, about) if is_lost and about.wanted is None else None
    # Ints beside floats, or one type alone, may be no part of what a package refuses.
    held = {x.dtypes[-1] for x in users.leaves} if users else ()
    return users if len(held) > 1 == len({*map(kind, held)}) else note


def find_checked(failure: Failure, about: Complaint) -> Finding | None:
    """The arrays of the types that another library's message names, in the user's call."""
    users = [site for site in failure.sites if not is_installed(site.file)]
    is_own = failure.sites[-1:] == users[-1:]
    for site in reversed(users):
        is_of_jax = any(not is_users(x.f_code.co_filename) for x in site.inside[:1])
        named = [x for x in written_in(site) if str(dtype_of(x.value)) in about.types]
        if about.wanted is None and is_of_jax and (is_own or not named):
            return None  # it was raised in a function that JAX calls
        if named:
            others = about.types - {str(dtype_of(x.value)) for x in named}
            wanted = None if named[1:] else about.wanted
            if len(about.types) == 2 and len(others) == 1 and "assert" not in site.name:
                wanted = jnp.dtype(next(iter(others)))
            return _found(RefusedCall(wanted, site), [(x.text + x.name, x) for x in named])
    return None


def _found(call: RefusedCall, named: Sequence[tuple[str, Argument]]) -> Finding | None:
    site, leaves = call.site, list[RefusedLeaf]()
    for place, (text, x) in enumerate(named):
        why = of_argument(x, site)
        # What made an index a float is rather to be changed, but for the line of its use.
        is_made = why.origin is None or why.origin.users.line != site.line
        is_first = kind(call.wanted) == "int" and is_made
        leaves.append(RefusedLeaf(place, text, (x.value,), why, None, is_first, argument=x))
    text = f"{site.name or 'a call'} refuses the types of what it is given."
    return Finding(text, leaves, call) if leaves else None


def _different(given: Sequence[Argument], about: Complaint, site: Site) -> list[Argument]:
    """The arguments of those types that a message names."""
    types = lambda value: {str(dtype_of(value)), type(value).__name__}
    # A bool is an option of a function.
    given = [x for x in given if type(x.value) is not bool]
    named = [x for x in given if types(x.value) & about.types]
    is_named = about.names.__contains__ if about.names else lambda base: base not in _WHERE
    named = [x for x in named if is_named(x.base)]
    # A Python number may be an option, such as an axis.
    arrays = [x for x in named if not is_python_number(x.value)]
    if about.types <= {str(dtype_of(x.value)) for x in arrays}:
        named = arrays
    return named if len({dtype_of(x.value) for x in named}) > 1 else []


def _refused_arguments(
    given: Sequence[Argument], about: Complaint, site: Site
) -> list[Argument]:
    """The arguments of a type that JAX refuses."""
    named = [
        x for x in given if type(x.value) is not bool and _is_refused_argument(x, about)
    ]
    bases = {parameter(x) for x in about.names}
    paths = tuple(x[len(parameter(x)) :] for x in about.names if x not in bases)
    if paths:  # in what was compiled, which has no names
        return [x for x in named if x.name.endswith(paths)]
    if about.role.is_only or any(x.base in bases for x in given):
        named = [x for x in named if not bases or x.base in bases]
    positions = _differentiated(site)
    if not positions:
        return named
    differentiated = [x for x in named if x.position in positions]
    # What is differentiated may be in a function that is given to another one.
    is_inside = not differentiated and kind(about.wanted) == "complex"
    return named if is_inside else differentiated


def _differentiated(site: Site) -> set[int]:
    """The positions of the arguments in which a call differentiates; empty if in none."""
    for frame in site.inside:
        numbers = frame.f_locals.get("argnums")
        values = frame.f_locals.get("args")
        if numbers is not None and values:
            numbers = (numbers,) if isinstance(numbers, int) else numbers
            return {number % len(values) for number in numbers}  # -1 is the last
    return set()


def _has_floats_beside(refused: Sequence[Argument], site: Site) -> bool:
    """Whether what is differentiated has floats beside the ints that are refused.

    A cast would make a parameter of a counter.
    """
    positions = _differentiated(site)
    for candidates in arguments(site):
        for argument in candidates:
            is_float = kind(dtype_of(argument.value)) in ("float", "complex")
            if is_float and argument.position in positions and refused:
                return True
    return False


def _is_refused_argument(argument: Argument, about: Complaint) -> bool:
    dtype = dtype_of(argument.value)
    is_number = not about.types or is_python_number(argument.value)
    if kind(about.wanted) in ("int", "bool") and is_number:  # a number in 64 bits
        return kind(dtype) == "float"
    # With x64 off, JAX takes an array of NumPy for one of 32 bits, and names its own type.
    own = getattr(argument.value, "dtype", dtype)
    return not {str(dtype), str(own)}.isdisjoint(about.types)


def _label(argument: Argument, site: Site) -> str:
    """The name of an argument, and its expression if that says more."""
    text = argument.text if argument.is_whole else ""
    if not text or len(text) > 40 or argument.base in ("self", "other"):
        return text[:40] or argument.name
    name = "index" if isinstance(site.node, ast.Subscript) else argument.name
    return name if text == argument.name else f"{name} = {text}"
