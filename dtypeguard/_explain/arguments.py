"""Finds the arguments of a call, or the result of a function, that JAX refuses."""

import ast
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import float0

from .._leaves.dtypes import dtype_of, is_array, is_python_number, kind
from .._leaves.rows import count
from .._leaves.types import DType, Leaf
from .._lines.fed import parameter
from .._lines.numbers import number_line
from .._lines.provenance import TypeProvenance
from .._lines.record import recorded
from .._lines.sites import Argument, Site, arguments, stored, written_in
from .._source.files import is_installed, is_users
from .._source.origin import Why, origin_of_frame
from .._source.syntax import evaluated, returned, statement
from .finding import Finding, RefusedCall, RefusedLeaf
from .flags import is_of_flag
from .messages import Complaint
from .read import Failure

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
_SIZES = {"shape", "args", "newshape", "new_sizes", "N", "M", "num", "reps", "repeats"}
_SIZES |= {"slice_size", "index", "idx", "item", "dimensions"}
# Numbers that are whole as well.
_ENDS = {"seed", "lower", "upper", "dtype"}

# Frames of a package, from the one that the user calls, that may have its parameters.
_FRAMES = 4


def find_arguments(
    failure: Failure, complaint: Complaint, provenance: TypeProvenance
) -> Finding | None:
    """The arguments of a call, or the result of a function, that JAX refuses."""
    if complaint.is_result:
        return _result(failure, complaint, provenance)
    site, wanted = failure.sites[-1], complaint.wanted
    refused = _different if wanted is None else _refused
    named = (refused(given, complaint, site) for given in arguments(site))
    leaves = []
    some = list(next(filter(None, named), ()))
    if is_of_flag(dtype_of(x.value) for x in some):  # what JAX calls by itself
        some = [x for x in some if x.source or is_array(x.value)]
    places = {*_PLACES, *_SIZES, *_ENDS, complaint.parameter}
    keeps = kind(wanted) == "int" and any(
        kind(dtype_of(x.value)) == "float" and x.base not in places for x in some
    )
    for number, argument in enumerate(some):
        argument = _as_written(argument, site).with_text(site.file)
        written = evaluated(argument.source, site.frame)
        if argument.is_whole and is_python_number(written):
            argument = argument._replace(value=written)  # JAX may have converted it
        why = provenance.of(_model(argument, site), site)
        about = number, _label(argument, site), (argument.value,), why
        leaves.append(RefusedLeaf(*about, argument=argument))
    if len(leaves) == 1 and is_installed(site.file) and leaves[0].why.origin is None:
        leaves = [_given_to_package(leaves[0], failure.sites)]
    name = site.name or "a call"
    some = "an argument" if len(leaves) == 1 else "arguments"
    headline = f"{name} has {some} of a type that it does not accept."
    if wanted is None:
        headline = f"the arguments of {name} have different types."
    users = []
    if is_installed(site.file):
        own = [each for each in reversed(failure.sites) if not is_installed(each.file)]
        users = [(each, [*written_in(each)]) for each in own]
    call = RefusedCall(site.file, site.node, wanted, failure.is_update, users)
    call = call._replace(option=complaint.option, keeps=keeps)
    return Finding(headline, leaves, call) if leaves else None


def _given_to_package(leaf: RefusedLeaf, sites: Sequence[Site]) -> RefusedLeaf:
    """The one float that the user's call gives to a package which refuses a number.

    The package may have computed with it.
    """
    own = next((x for x in reversed(sites) if not is_installed(x.file)), None)
    if not is_python_number(leaf.values[0]) or own is None or not own.inside:
        return leaf
    node = own.node if isinstance(own.node, ast.Call) else None
    passed = [frame.f_locals for frame in reversed(own.inside[:_FRAMES])]
    named = {name: value for variables in passed for name, value in variables.items()}
    floats = [
        (each, named[each.arg])
        for each in (node.keywords if node else ())
        if each.arg and isinstance(named.get(each.arg), float)
    ]
    if len(floats) != 1:
        return leaf
    ((keyword, value),) = floats
    source = keyword.value
    argument = Argument(keyword.arg or "", value, source).with_text(own.file)
    line = number_line(source, own.frame, value)
    about = {"argument": argument, "why": Why(line), "values": (value,)}
    return leaf._replace(path=_label(argument, own) or argument.text, **about)


def find_named(failure: Failure, provenance: TypeProvenance) -> Finding | None:
    """The arrays of the types that another library's message names, in the user's call."""
    for site in reversed(failure.sites):
        if is_installed(site.file):
            continue
        inner = [frame.f_code.co_filename for frame in site.inside[:1]]
        if site is not failure.sites[-1] and not all(map(is_users, inner)):
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
            is_check = "assert" in name or len(failure.types) != 2
            users = [] if is_check else [(site, [*written_in(site)])]
            about = {"users": users, "is_of_others": True}
            others = {*failure.types} - {str(dtype_of(x.value)) for x in named}
            wanted = jnp.dtype(others.pop()) if users and len(others) == 1 else None
            call = RefusedCall(site.file, site.node, wanted, **about)
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
                if _gives_back(site, each):
                    why = Why(origin_of_frame(site.frame))
                about = len(leaves), path, (compiled, each.value), why
                leaves.append(RefusedLeaf(*about, argument=each))
                break
    call = RefusedCall(site.file, site.node, None, is_compiled=True)
    some = f"{count(leaves)} of another type than it was compiled for"
    head = f"{site.name or 'a compiled function'} is called with {some}."
    return Finding(head, leaves, call) if leaves else None


def _gives_back(site: Site, argument: Argument) -> bool:
    """Whether a call assigns to the variable that it is given, and nothing recorded it."""
    node = statement(site.file, site.line)
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = {x.id for y in targets for x in ast.walk(y) if isinstance(x, ast.Name)}
    is_own = getattr(argument.source, "id", "") in names
    return is_own and recorded(argument.value).origin is None


def _result(
    failure: Failure, complaint: Complaint, provenance: TypeProvenance
) -> Finding | None:
    """The result of a function of another kind than JAX wants."""
    (refused,) = complaint.types
    for name, body in failure.functions:
        wanted = "a bool" if name == "cond_fun" else "a float"
        headline = f"{name} of {failure.sites[-1].name or 'a call'} has to return {wanted}."
        results, value = body.results(provenance), jnp.zeros((), refused)
        why = results.of(0) if results else Why()
        leaf = RefusedLeaf(0, "result", (results.aval(0) if results else value,), why)
        code, node = body.code, None
        if code is not None and not is_installed(code.co_filename):
            node = returned(code)  # what the user can edit
        if body.is_pair:
            node = node.elts[0] if isinstance(node, ast.Tuple) else None
        file = code.co_filename if code and node else ""
        argument = Argument("", value, node).with_text(file)
        call = RefusedCall(file, node, complaint.wanted, is_result=True, body=body)
        return Finding(headline, [leaf._replace(argument=argument)], call)
    return None


def _different(
    given: Sequence[Argument], complaint: Complaint, site: Site
) -> list[Argument]:
    """The arguments of those types that a message names."""
    types = complaint.types
    named = [x for x in given if _type_names(x.value) & types]
    if complaint.is_place:
        named = [argument for argument in named if argument.base in _PLACES]
    else:
        named = [x for x in named if x.base not in _PLACES | _CHOICES]
    # A Python number may be an option, such as an axis.
    arrays = [argument for argument in named if not is_python_number(argument.value)]
    if types <= {str(dtype_of(argument.value)) for argument in arrays}:
        named = arrays
    return named if len({dtype_of(argument.value) for argument in named}) > 1 else []


def _refused(given: Sequence[Argument], complaint: Complaint, site: Site) -> list[Argument]:
    """The arguments of a type that JAX refuses."""
    places = _SIZES if complaint.is_size else _PLACES | _CHOICES
    named = [x for x in given if type(x.value) is not bool and _is_refused(x, complaint)]
    is_named = any(argument.base in places for argument in given)
    if complaint.is_size or (complaint.is_place and is_named):
        named = [argument for argument in named if argument.base in places]
    if any(argument.base == complaint.parameter for argument in named):
        named = [argument for argument in named if argument.base == complaint.parameter]
    if dtypes := [x for x in named if isinstance(x.value, np.dtype)]:
        return dtypes  # and not the numbers of a shape
    if complaint.wanted == float0:
        primals = {x.name: x.value for x in given if x.base == "primals"}
        of = lambda x: primals.get(x.name.replace("tangents", "primals", 1))
        named = [x for x in named if x.base == "tangents"]
        return [x for x in named if kind(dtype_of(of(x))) in ("int", "bool")]
    for frame in site.inside:  # a function is differentiated in some of its arguments
        numbers, values = map(frame.f_locals.get, ("argnums", "args"))
        if numbers is not None and values:
            numbers = (numbers,) if isinstance(numbers, int) else numbers
            positions = {number % len(values) for number in numbers}  # -1 is the last
            some = [argument for argument in named if argument.position in positions]
            # What is differentiated may be in a function that is given to another one.
            return some or (named if complaint.option else [])
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
    if complaint.is_place and is_number:  # a number in 64 bits
        return kind(dtype) == "float"
    # With x64 off, JAX takes an array of NumPy for one of 32 bits, and names its own type.
    named = {str(dtype), str(getattr(argument.value, "dtype", dtype))}
    return not named.isdisjoint(complaint.types)


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
