"""Finds the arguments of a call that are refused, by what a message says of them."""

import ast
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import jax.numpy as jnp

from .._blame.behind import origin_of_whole_numbers
from .._blame.provenance import of_argument
from .._leaves.dtypes import dtype_of, is_python_number, kind
from .._leaves.types import DType
from .._source.files import is_installed, is_users
from .._source.origin import Why, origin_at
from .._source.syntax import line_of_option
from .._tracebacks.path_text import parameter
from .._tracebacks.sites import Argument, Site, arguments, looked_up, written_in
from .derivatives import differentiated, has_floats_beside
from .finding import Failure, Finding, RefusedCall, RefusedLeaf, users_line
from .messages import PLACES, WHOLE_NUMBERS, Complaint

_LONGEST_LABEL = 40


def find_arguments(failure: Failure, complaint: Complaint) -> Finding | None:
    """Returns the arguments that a message is about."""
    if complaint.role.is_checked:
        return find_checked(failure, complaint)
    # The innermost line outside of JAX, which may be a package's.
    site = failure.sites[-1]
    is_index = isinstance(site.node, ast.Subscript)  # Python and NumPy refuse some
    if failure.is_of_backward_pass or not (failure.is_of_jax or is_index):
        return None
    refused = _arguments_of_call(site, complaint)
    if not refused and is_index and kind(complaint.wanted) == "int":
        refused = list(_floats_of_index(site))
    if not refused:
        return None
    finding = _finding_in_jax(refused, complaint, site)
    has_users_line = any(users_line(leaf.why.root) for leaf in finding.leaves)
    if is_installed(site.file) and not has_users_line and complaint.wanted is None:
        return _find_in_call_of_package(failure, complaint) or finding
    return finding


def _arguments_of_call(site: Site, complaint: Complaint) -> list[Argument]:
    """Returns the refused arguments of the first function that has any.

    The outermost is the one that the user calls, by the names of the documentation.
    """
    for candidates in arguments(site):
        if complaint.wanted is None:
            refused = _arguments_that_differ(candidates, complaint)
        else:
            refused = _refused_arguments(candidates, complaint, site)
        if refused:
            return refused
    return []


def _finding_in_jax(
    refused: Sequence[Argument], complaint: Complaint, site: Site
) -> Finding:
    bases = {argument.base for argument in refused}
    is_whole_number = bases <= WHOLE_NUMBERS | complaint.parameters
    call = RefusedCall(
        site,
        is_only_for_ints=kind(complaint.wanted) == "int" and not is_whole_number,
        is_of_ints_beside_floats=kind(complaint.wanted) == "float"
        and has_floats_beside(site),
    )
    labels = [_label(argument, site) for argument in refused]
    leaves = refused_leaves(refused, labels, itertools.repeat(complaint.wanted), site)
    return refused_call(call, leaves)


def _find_in_call_of_package(failure: Failure, complaint: Complaint) -> Finding | None:
    """Returns the user's arguments of a package whose own arrays JAX refuses.

    They may have passed through a function that the package compiles.
    """
    finding = find_checked(failure, complaint)
    if finding is None:
        return None
    # Ints beside floats, or one type alone, may be no part of what a package refuses.
    dtypes = {leaf.dtype for leaf in finding.leaves}
    kinds = {kind(dtype) for dtype in dtypes}
    return finding if len(dtypes) > 1 and len(kinds) == 1 else None


def find_checked(failure: Failure, complaint: Complaint) -> Finding | None:
    """Returns the arrays of the types that a message names, in the user's call."""
    users_sites = [site for site in failure.sites if not is_installed(site.file)]
    # The user's own check may name dtypes, and has its own words.
    is_raised_by_user = failure.sites[-1:] == users_sites[-1:]
    for site in reversed(users_sites):
        is_of_jax = any(not is_users(x.f_code.co_filename) for x in site.called_frames[:1])
        refused = [x for x in written_in(site) if complaint.refuses(dtype_of(x.value))]
        if complaint.wanted is None and is_of_jax and (is_raised_by_user or not refused):
            return None  # it was raised in a function that JAX calls
        if refused:
            wanted = _dtype_that_is_expected(refused, complaint, site)
            labels = [argument.text + argument.name for argument in refused]
            leaves = refused_leaves(refused, labels, itertools.repeat(wanted), site)
            return refused_call(RefusedCall(site), leaves)
    return None


def _dtype_that_is_expected(
    refused: Sequence[Argument], complaint: Complaint, site: Site
) -> DType | None:
    """Returns the dtype that a call takes; None if it is not known."""
    # Of two types that a message names, the call has one: the library has the other.
    types = {str(dtype_of(argument.value)) for argument in refused}
    missing = complaint.refused - types
    is_assertion = "assert" in site.name
    if len(complaint.refused) == 2 and len(missing) == 1 and not is_assertion:
        (dtype,) = missing
        return jnp.dtype(dtype)
    return complaint.wanted if len(refused) == 1 else None


def refused_call(call: RefusedCall, leaves: Sequence[RefusedLeaf]) -> Finding:
    """Returns a call with the leaves that it refuses."""
    name = call.site.name or "a call"
    return Finding(f"{name} refuses the types of what it is given.", leaves, call)


def refused_leaves(
    refused: Sequence[Argument],
    labels: Sequence[str],
    wanted_dtypes: Iterable[DType | None],
    site: Site,
) -> list[RefusedLeaf]:
    """Returns the leaves of arguments, each with a label and the dtype that is wanted."""
    leaves = []
    for number, (argument, wanted) in enumerate(zip(refused, wanted_dtypes)):
        why = _source_of(argument, of_argument(argument, site), wanted)
        leaf = RefusedLeaf(
            number,
            labels[number],
            (argument.value,),
            why,
            argument=argument,
            wanted=wanted,
        )
        leaves.append(leaf)
    return leaves


def _source_of(argument: Argument, why: Why, wanted: DType | None) -> Why:
    """Returns the lines of an argument, its source before what passes it on."""
    name = getattr(argument.source, "attr", "")
    if is_python_number(argument.value) and why.origin and name:
        origin = why.origin.users
        line = line_of_option(origin.file, origin.line, name)
        return why if line is None else Why(origin_at(origin.file, line, origin.function))
    if kind(wanted) == "int":
        # `floor` before an index, and not what it was computed of.
        origin = origin_of_whole_numbers(argument.value)
        return Why(origin) if users_line(origin) else why
    return why


def _arguments_that_differ(
    candidates: Iterable[Argument], complaint: Complaint
) -> list[Argument]:
    """Returns the arguments of those types that a message names."""
    refused = []
    for argument in candidates:
        types = {str(dtype_of(argument.value)), type(argument.value).__name__}
        if complaint.parameters:
            is_meant_by_name = argument.base in complaint.parameters
        else:
            is_meant_by_name = argument.base not in PLACES
        # Of a function, such as `keepdims`.
        is_option = type(argument.value) is bool
        if is_meant_by_name and not is_option and types & complaint.refused:
            refused.append(argument)
    # A Python number may be an option, such as an axis.
    arrays = [x for x in refused if not is_python_number(x.value)]
    if complaint.refused <= {str(dtype_of(x.value)) for x in arrays}:
        refused = arrays
    return refused if len({dtype_of(x.value) for x in refused}) > 1 else []


def _refused_arguments(
    candidates: Sequence[Argument], complaint: Complaint, site: Site
) -> list[Argument]:
    """Returns the arguments of a type that JAX refuses."""
    refused = [x for x in candidates if _is_refused_argument(x, complaint)]
    bases = {parameter(name) for name in complaint.parameters}
    if complaint.role.is_only or any(x.base in bases for x in candidates):
        refused = [x for x in refused if not bases or x.base in bases]
    positions = differentiated(site)
    if not positions:
        return refused
    in_positions = [x for x in refused if x.position in positions]
    # What is differentiated may be in a function that is given to another one.
    is_inside = not in_positions and kind(complaint.wanted) == "complex"
    return refused if is_inside else in_positions


def _is_refused_argument(argument: Argument, complaint: Complaint) -> bool:
    if type(argument.value) is bool:  # an option of a function
        return False
    dtype = dtype_of(argument.value)
    is_number = not complaint.refused or is_python_number(argument.value)
    if kind(complaint.wanted) in ("int", "bool") and is_number:  # a number in 64 bits
        return kind(dtype) == "float"
    # With x64 off, JAX takes an array of NumPy for one of 32 bits, and names its own type.
    dtype_of_numpy = getattr(argument.value, "dtype", dtype)
    return complaint.refuses(dtype) or complaint.refuses(dtype_of_numpy)


def _floats_of_index(site: Site) -> Iterator[Argument]:
    """Yields the floats in an index, as far as its source looks them up."""
    if not isinstance(site.node, ast.Subscript):
        return
    nodes_of_index = set(ast.walk(site.node.slice))
    for argument in looked_up(site):
        if argument.source in nodes_of_index and kind(dtype_of(argument.value)) == "float":
            yield dataclasses.replace(argument, base="index", path=())


def _label(argument: Argument, site: Site) -> str:
    """Returns the name of an argument, and its expression if that says more."""
    text = argument.text if argument.is_whole else ""
    is_operand = argument.base in ("self", "other")
    if not text or len(text) > _LONGEST_LABEL or is_operand:
        return text[:_LONGEST_LABEL] or argument.name
    name = "index" if isinstance(site.node, ast.Subscript) else argument.name
    return name if text == argument.name else f"{name} = {text}"
