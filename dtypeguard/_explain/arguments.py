"""Finds the arguments of a call, or the result of a function, that JAX refuses."""

import ast
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import float0

from .._leaves.compat import x64_enabled
from .._leaves.dtypes import dtype_of, is_array, is_python_number, kind
from .._leaves.paths import parameter
from .._leaves.rows import count
from .._leaves.types import DType, Leaf
from .._lines.provenance import TypeProvenance
from .._lines.sites import Argument, Site, arguments, stored, written_in
from .._source.files import is_users
from .._source.origin import Why, origin_at
from .._source.syntax import evaluated, returned
from .finding import Finding, RefusedCall, RefusedLeaf
from .frames import users_sites
from .messages import CHOICES, INDICES, OF_INDICES, SIZES, Complaint
from .read import Failure

# What may be cast to an int and lose no more than an index or a size does.
_WHOLE = INDICES | SIZES | {"seed", "lower", "upper", "dtype"}


def find_arguments(
    failure: Failure, complaint: Complaint, provenance: TypeProvenance
) -> Finding | None:
    """The arguments of a call that JAX refuses."""
    site, wanted = failure.sites[-1], complaint.wanted
    refused = _different if wanted is None else _refused
    named = (refused(given, complaint, site) for given in arguments(site))
    some = list(next(filter(None, named), ()))
    if not x64_enabled() and any(_is_wide(dtype_of(x.value)) for x in some):
        some = [x for x in some if x.source or is_array(x.value)]  # JAX calls it by itself
    leaves = []
    for number, argument in enumerate(some):
        argument, passed = _as_written(argument, site).with_text(site.file), argument.value
        written = evaluated(argument.source, site.frame)
        if argument.is_whole and is_python_number(written):
            argument = argument._replace(value=written)  # JAX may have converted it
        why = provenance.of(_model(argument, site), site)
        about = number, _label(argument, site), (argument.value,), why
        leaves.append(RefusedLeaf(*about, argument=argument._replace(value=passed)))
    name = site.name or "a call"
    what = "an argument" if len(leaves) == 1 else "arguments"
    headline = f"{name} has {what} of a type that it does not accept."
    if wanted is None:
        headline = f"the arguments of {name} have different types."
    keeps = any(getattr(x.value, "dtype", None) == float0 for x in some)
    keeps |= kind(wanted) == "int" and any(
        kind(dtype_of(x.value)) == "float" and x.base not in _WHOLE | complaint.names
        for x in some
    )
    about = {"is_update": failure.is_update, "keeps": keeps}
    call = RefusedCall(wanted, "argument", name, **about)
    return Finding(headline, leaves, call) if leaves else None


def find_named(failure: Failure, provenance: TypeProvenance) -> Finding | None:
    """The arrays of the types that another library's message names, in the user's call."""
    for site in users_sites(failure.sites):
        inner = [frame.f_code.co_filename for frame in site.inside[:1]]
        is_of_indices = OF_INDICES.search(failure.message) is not None
        is_own = site is failure.sites[-1] or all(map(is_users, inner))
        if not is_own and not is_of_indices:
            return None  # it was raised in a function that JAX calls
        named = [*written_in(site)]
        for each in getattr(site.node, "args", ()):
            if isinstance(each, ast.Attribute) and each.attr == "dtype":
                model = Argument("", evaluated(each.value, site.frame), each.value)
                named.append(model.with_text(site.file))
        named = [x for x in named if x.source and str(dtype_of(x.value)) in failure.types]
        leaves = [
            RefusedLeaf(
                n, each.text, (each.value,), provenance.of(each, site), argument=each
            )
            for n, each in enumerate(named)
        ]
        if leaves:
            name = site.name or "a call"
            others = {*failure.types} - {str(dtype_of(x.value)) for x in named}
            wanted = None
            if is_of_indices and len(leaves) == 1:
                wanted = jnp.dtype("int32")
            elif "assert" not in name and len(failure.types) == 2 and len(others) == 1:
                wanted = jnp.dtype(others.pop())
            call = RefusedCall(wanted, "checked", name)
            return Finding(f"{name} refuses the type of what it is given.", leaves, call)
    return None


def find_compiled(
    failure: Failure, meant: Mapping[str, DType], provenance: TypeProvenance
) -> Finding | None:
    """The arguments of a call of another type than its function is compiled for."""
    site, leaves = failure.sites[-1], []
    given = [*written_in(site)]
    for path, dtype in meant.items():
        inside = path.removeprefix(parameter(path))
        for each in given:
            if each.name == inside and each.source and dtype_of(each.value) != dtype:
                compiled = jax.ShapeDtypeStruct(each.value.shape, dtype)
                why = provenance.of(each, site)
                about = len(leaves), path, (compiled, each.value), why
                leaves.append(RefusedLeaf(*about, argument=each))
                break
    some = f"{count(leaves)} of another type than it was compiled for"
    head = f"{site.name or 'a compiled function'} is called with {some}."
    return Finding(head, leaves, RefusedCall(None, "compiled")) if leaves else None


def find_result(
    failure: Failure, complaint: Complaint, provenance: TypeProvenance
) -> Finding | None:
    """The result of a function of another kind than JAX wants."""
    (refused,) = complaint.types
    for name, body in failure.functions:
        wanted = "a bool" if name == "cond_fun" else "a float"
        headline = f"{name} of {failure.sites[-1].name or 'a call'} has to return {wanted}."
        results, value = body.results(), jnp.zeros((), refused)
        why = results.of(0) if results else Why()
        code = body.code
        node = returned(code) if code and is_users(code.co_filename) else None
        if code and node and why.origin is None:
            why = Why(origin_at(code.co_filename, node.lineno, code.co_qualname))
        leaf = RefusedLeaf(0, "result", (results.aval(0) if results else value,), why)
        return Finding(headline, [leaf], RefusedCall(complaint.wanted, "result", name))
    return None


def _different(
    given: Sequence[Argument], complaint: Complaint, site: Site
) -> list[Argument]:
    """The arguments of those types that a message names."""
    types, names = complaint.types, complaint.names
    named = [x for x in given if _type_names(x.value) & types]
    if names:
        named = [argument for argument in named if argument.base in names]
    else:
        named = [x for x in named if x.base not in INDICES | CHOICES]
    # A Python number may be an option, such as an axis.
    arrays = [argument for argument in named if not is_python_number(argument.value)]
    if types <= {str(dtype_of(argument.value)) for argument in arrays}:
        named = arrays
    return named if len({dtype_of(argument.value) for argument in named}) > 1 else []


def _refused(given: Sequence[Argument], complaint: Complaint, site: Site) -> list[Argument]:
    """The arguments of a type that JAX refuses."""
    names = complaint.names
    named = [x for x in given if type(x.value) is not bool and _is_refused(x, complaint)]
    if complaint.role.is_only or any(argument.base in names for argument in given):
        named = [argument for argument in named if not names or argument.base in names]
    if dtypes := [x for x in named if isinstance(x.value, np.dtype)]:
        return dtypes  # and not the numbers of a shape
    if complaint.wanted == float0:
        primals = {x.name: x.value for x in given if x.base == "primals"}
        of = lambda x: primals.get(x.name.replace("tangents", "primals", 1))
        return [x for x in named if kind(dtype_of(of(x))) in ("int", "bool")]
    for frame in site.inside:  # a function is differentiated in some of its arguments
        numbers, values = map(frame.f_locals.get, ("argnums", "args"))
        if numbers is not None and values:
            numbers = (numbers,) if isinstance(numbers, int) else numbers
            positions = {number % len(values) for number in numbers}  # -1 is the last
            some = [argument for argument in named if argument.position in positions]
            # What is differentiated may be in a function that is given to another one.
            return some or (named if kind(complaint.wanted) == "complex" else [])
    return named


def _as_written(argument: Argument, site: Site) -> Argument:
    """An argument of a function of JAX's, with the expression by which it was given."""
    if argument.source and argument.is_whole:
        return argument
    node, own = stored(site), [*written_in(site)]
    if node is not None:
        own.append(Argument("", evaluated(node.value, site.frame), node.value))
    own = [x for x in own if x.value is argument.value and x.source and x.is_whole]
    return argument._replace(source=own[0].source, is_whole=True) if own else argument


def _model(argument: Argument, site: Site) -> Argument:
    """The array `x` of an argument `x.dtype`; any other argument itself."""
    source = argument.source
    if isinstance(argument.value, np.dtype) and isinstance(source, ast.Attribute):
        array = evaluated(source.value, site.frame)
        if source.attr == "dtype" and is_array(array):
            return argument._replace(value=array, source=source.value)
    return argument


def _is_refused(argument: Argument, complaint: Complaint) -> bool:
    if isinstance(argument.value, np.dtype):
        return str(argument.value) in complaint.types
    dtype = dtype_of(argument.value)
    is_number = not complaint.types or is_python_number(argument.value)
    if kind(complaint.wanted) in ("int", "bool") and is_number:  # a number in 64 bits
        return kind(dtype) == "float"
    # With x64 off, JAX takes an array of NumPy for one of 32 bits, and names its own type.
    own = getattr(argument.value, "dtype", dtype)
    named = {str(dtype), "float0" if own == float0 else str(own)}
    return not named.isdisjoint(complaint.types)


def _is_wide(dtype: DType) -> bool:
    return dtype is not None and dtype.itemsize == 8 and dtype.kind in "iuf"


def _label(argument: Argument, site: Site) -> str:
    """The name of an argument, and its expression if that says more."""
    text = argument.text
    if not argument.is_whole or not text or len(text) > 40 or text == argument.name:
        return argument.name
    if argument.base in ("self", "other"):
        return text
    name = "index" if isinstance(site.node, ast.Subscript) else argument.name
    return f"{name} = {text}"


def _type_names(value: Leaf) -> set[str]:
    """How messages call the type of a value. An option of a function is a bool."""
    if type(value) is bool or not (is_array(value) or is_python_number(value)):
        return set()
    return {str(dtype_of(value)), type(value).__name__}
