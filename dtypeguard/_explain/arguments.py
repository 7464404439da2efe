"""Finds the arguments of a call that are refused."""

import ast
from collections.abc import Sequence

import jax.numpy as jnp

from .._leaves.dtypes import dtype_of, is_array, is_python_number, kind
from .._leaves.groups import parameter
from .._leaves.types import Leaf
from .._lines.provenance import of_argument
from .._lines.sites import Argument, Site, arguments, written_in
from .._source.files import is_users
from .finding import Failure, Finding, RefusedCall, RefusedLeaf, users_sites
from .messages import CHOICES, INDICES, SIZES, Complaint

# What may be cast to an int and lose no more than an index or a size does.
_WHOLE = INDICES | SIZES | {"seed", "lower", "upper"}


def find_arguments(failure: Failure, about: Complaint) -> Finding | None:
    """The arguments of a call that JAX refuses."""
    names = [frame.f_code.co_name for frame in failure.frames]
    if not failure.is_of_jax or any(x.startswith("backward_pass") for x in names):
        return None  # or the rule of a derivative has returned what cannot be added
    site = failure.sites[-1]
    find = _different if about.wanted is None else _refused
    refused = next(filter(None, (find(x, about, site) for x in arguments(site))), [])
    name = site.name or "a call"
    headline = f"{name} has an argument of a type that it does not accept."
    if len(refused) > 1:
        headline = f"{name} has arguments of a type that it does not accept."
    if about.wanted is None:
        headline = f"the arguments of {name} have different types."
    is_float = lambda x: kind(dtype_of(x.value)) == "float"
    keeps = kind(about.wanted) == "int" and any(
        is_float(x) and x.base not in _WHOLE | about.names for x in refused
    )
    call = RefusedCall(about.wanted, name, site, keeps)
    return _found(headline, call, [(_label(x, site), x) for x in refused])


def find_checked(failure: Failure, about: Complaint) -> Finding | None:
    """The arrays of the types that another library's message names, in the user's call."""
    if about.wanted is None and failure.is_of_jax:
        return None
    for site in users_sites(failure.sites):
        inner = [frame.f_code.co_filename for frame in site.inside[:1]]
        if about.wanted is None and not all(map(is_users, inner)):
            return None  # it was raised in a function that JAX calls
        named = [x for x in written_in(site) if str(dtype_of(x.value)) in about.types]
        if named:
            name, wanted = site.name or "a call", about.wanted
            others = {*about.types} - {str(dtype_of(x.value)) for x in named}
            if len(about.types) == 2 and len(others) == 1 and "assert" not in name:
                wanted = jnp.dtype(others.pop())
            call = RefusedCall(None if about.wanted and named[1:] else wanted, name, site)
            headline = f"{name} refuses the type of what it is given."
            return _found(headline, call, [(x.text, x) for x in named])
    return None


def _found(
    headline: str, call: RefusedCall, named: Sequence[tuple[str, Argument]]
) -> Finding | None:
    leaves = [
        RefusedLeaf(n, text, (x.value,), of_argument(x, call.site), argument=x)
        for n, (text, x) in enumerate(named)
    ]
    return Finding(headline, leaves, call) if leaves else None


def _different(given: Sequence[Argument], about: Complaint, site: Site) -> list[Argument]:
    """The arguments of those types that a message names."""
    named = [x for x in given if _type_names(x.value) & about.types]
    if about.names:
        named = [x for x in named if x.base in about.names]
    else:
        named = [x for x in named if x.base not in INDICES | CHOICES]
    # A Python number may be an option, such as an axis.
    arrays = [x for x in named if not is_python_number(x.value)]
    if about.types <= {str(dtype_of(x.value)) for x in arrays}:
        named = arrays
    return named if len({dtype_of(x.value) for x in named}) > 1 else []


def _refused(given: Sequence[Argument], about: Complaint, site: Site) -> list[Argument]:
    """The arguments of a type that JAX refuses."""
    named = [x for x in given if type(x.value) is not bool and _is_refused(x, about)]
    bases = {parameter(x) for x in about.names}
    paths = tuple(x[len(parameter(x)) :] for x in about.names if x not in bases)
    if paths:  # in what was compiled, which has no names
        return [x for x in named if x.name.endswith(paths)]
    if about.role.is_only or any(x.base in bases for x in given):
        named = [x for x in named if not bases or x.base in bases]
    for frame in site.inside:  # a function is differentiated in some of its arguments
        numbers, values = map(frame.f_locals.get, ("argnums", "args"))
        if numbers is not None and values:
            numbers = (numbers,) if isinstance(numbers, int) else numbers
            positions = {number % len(values) for number in numbers}  # -1 is the last
            some = [x for x in named if x.position in positions]
            # What is differentiated may be in a function that is given to another one.
            return some or (named if kind(about.wanted) == "complex" else [])
    return named


def _is_refused(argument: Argument, about: Complaint) -> bool:
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


def _type_names(value: Leaf) -> set[str]:
    """How messages call the type of a value. An option of a function is a bool."""
    if type(value) is bool or not (is_array(value) or is_python_number(value)):
        return set()
    return {str(dtype_of(value)), type(value).__name__}
