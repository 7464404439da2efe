"""Finds the arguments of a call that are refused, by what a message says of them."""

import ast
import dataclasses
from collections.abc import Iterator, Sequence

import jax.numpy as jnp

from .._blame.behind import lines_of_index
from .._blame.provenance import of_argument
from .._leaves.dtypes import dtype_of, is_array, is_python_number, kind
from .._leaves.types import DType
from .._source.files import is_installed, is_users
from .._source.origin import Why, origin_at
from .._source.syntax import line_of_option
from .._tracebacks.sites import Argument, Site, arguments, looked_up
from .derivatives import differentiated
from .finding import Failure, Finding, RefusedLeaf, users_line
from .messages import PLACES, WHOLE_NUMBERS, Complaint


def find_arguments(failure: Failure, complaint: Complaint) -> Finding | None:
    """Returns the arguments that a message is about."""
    if complaint.is_checked:
        return find_checked(failure, complaint)
    # The innermost line outside of JAX, which may be a package's.
    site = failure.sites[-1]
    is_index = isinstance(site.node, ast.Subscript)  # Python and NumPy refuse some
    if not (failure.is_of_jax or is_index):
        return None
    for candidates in _candidates(site):
        refused = _refused(candidates, complaint, site)
        if refused:
            finding = _finding_in_jax(refused, complaint, site)
            is_users_own = any(users_line(leaf.why.root) for leaf in finding.leaves)
            is_in_package = is_installed(site.file) and complaint.wanted is None
            if is_in_package and not is_users_own:
                return _find_in_call_of_package(failure, complaint) or finding
            return finding
    return None


def _candidates(site: Site) -> Iterator[Sequence[Argument]]:
    """Yields the arguments of a call by the names of each function of JAX, outside in.

    The outermost is the one that the user calls, by the names of the documentation.
    """
    if isinstance(site.node, ast.Subscript):
        in_index = []
        for argument in looked_up(site):
            if argument.source is not site.node.value:
                in_index.append(dataclasses.replace(argument, base="index", path=()))
        yield in_index
    yield from arguments(site)


def _refused(
    candidates: Sequence[Argument], complaint: Complaint, site: Site
) -> Sequence[Argument]:
    """Returns the arguments of the types that a message refuses."""
    by_name = [x for x in candidates if x.base in complaint.parameters]
    refused = []
    for argument in by_name or candidates:
        if complaint.refuses(argument.value):
            refused.append(argument)
    if complaint.wanted is None:
        return _that_differ(refused, complaint)
    # What is differentiated may be in a function that is given to another one.
    positions = differentiated(site)
    return [x for x in refused if x.position in positions] or refused


def _that_differ(refused: Sequence[Argument], complaint: Complaint) -> Sequence[Argument]:
    if not complaint.parameters:
        refused = [x for x in refused if x.base not in PLACES]
    # A Python number may be an option, such as an axis.
    arrays = [x for x in refused if not is_python_number(x.value)]
    if complaint.refused <= _names_of_dtypes(arrays):
        refused = arrays
    dtypes = {dtype_of(x.value) for x in refused}
    if len(dtypes) > 1:
        return refused
    return []


def _names_of_dtypes(refused: Sequence[Argument]) -> set[str]:
    """Returns the dtypes of arguments, in the words of a message."""
    return {str(dtype_of(x.value)) for x in refused}


def _finding_in_jax(
    refused: Sequence[Argument], complaint: Complaint, site: Site
) -> Finding:
    wanted = complaint.wanted
    bases = {argument.base for argument in refused}
    if kind(wanted) == "int" and not bases <= WHOLE_NUMBERS | complaint.parameters:
        wanted = None  # no float is cast to an int but for an index or a size
    leaves = [leaf_of(x, wanted, site) for x in refused]
    return refused_call(site, leaves)


def _find_in_call_of_package(failure: Failure, complaint: Complaint) -> Finding | None:
    """Returns the user's arguments of a package whose own arrays JAX refuses.

    They may have passed through a function that the package compiles.
    """
    finding = find_checked(failure, complaint)
    if finding is None:
        return None
    dtypes = {leaf.dtype for leaf in finding.leaves}
    kinds = set(map(kind, dtypes))
    # Ints beside floats, or one type alone, may be no part of what a package refuses.
    if len(kinds) == 1 and len(dtypes) > 1:
        return finding
    return None


def find_checked(failure: Failure, complaint: Complaint) -> Finding | None:
    """Returns the arrays of the types that a message names, in the user's call."""
    for site in reversed(failure.sites):
        if is_installed(site.file):
            continue
        refused = []
        for argument in looked_up(site):
            if is_array(argument.value) and complaint.refuses(argument.value):
                refused.append(argument)
        if refused:
            wanted = _dtype_that_is_expected(refused, complaint)
            leaves = [leaf_of(x, wanted, site) for x in refused]
            return refused_call(site, leaves)
        # A function that JAX calls has raised it.
        called = [frame.f_code.co_filename for frame in site.called_frames[:1]]
        if complaint.wanted is None and not all(map(is_users, called)):
            return None
    return None


def _dtype_that_is_expected(
    refused: Sequence[Argument], complaint: Complaint
) -> DType | None:
    """Returns the dtype that a call takes; None if it is not known."""
    # Of two types that a message names, the call has one: the library has the other.
    missing = complaint.refused - _names_of_dtypes(refused)
    if len(complaint.refused) == 2 and len(missing) == 1:
        return jnp.dtype(min(missing))
    if len(refused) == 1:
        return complaint.wanted
    return None


def refused_call(site: Site, leaves: Sequence[RefusedLeaf]) -> Finding:
    """Returns a call with the leaves that it refuses."""
    name = site.name or "a call"
    return Finding(f"{name} refuses the types of what it is given.", leaves, site)


def leaf_of(argument: Argument, wanted: DType | None, site: Site) -> RefusedLeaf:
    """Returns the leaf of an argument of a call, with the dtype that is wanted."""
    why = _source_of(argument, of_argument(argument, site))
    passed_on = ""
    if kind(wanted) == "int":
        # `floor` before an index, and neither what it was computed of nor where it is used.
        lines = lines_of_index(argument.value)
        if users_line(lines.origin):
            why = lines
            passed_on = "as it was given"
    return RefusedLeaf(
        _label(argument, site),
        (argument.value,),
        why,
        passed_on=passed_on,
        argument=argument,
        wanted=wanted,
    )


def _source_of(argument: Argument, why: Why) -> Why:
    """Returns the lines of an argument, its source before what passes it on."""
    name = getattr(argument.source, "attr", "")
    if is_python_number(argument.value) and why.origin:
        origin = why.origin.users
        line = line_of_option(origin.file, origin.line, name)
        if line is not None:
            return Why(origin_at(origin.file, line, origin.function))
    return why


def _label(argument: Argument, site: Site) -> str:
    """Returns the name of an argument, and its expression if that says more."""
    text = argument.text
    name = argument.name
    if not argument.base:
        return text + name
    if not argument.is_whole or text in ("", name):
        return name
    if argument.base in ("self", "other"):  # of an operator
        return text
    return f"{name} = {text}"
