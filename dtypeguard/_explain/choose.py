"""Chooses what to write: candidates in their order, of which the first that fits is said.

What loses nothing comes first: a leaf begins wider, and nothing is narrowed that may be
widened. A float is made an int for an index or a size alone. Whether the leaves of a loop
agree afterwards is tried, and not reasoned about.
"""

import dataclasses
import os
from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np

from .._blame.provenance import of_leaf
from .._leaves.dtypes import is_python_number, is_weak, kind, rank
from .._leaves.internals import STATEFUL
from .._leaves.table import grouped
from .._leaves.types import DType, Leaf
from .._source.files import is_installed, line_text, package, short_path
from .._source.origin import Frame, Why, frame_of, is_update
from .._tracebacks.sites import Site
from .finding import Finding, RefusedCall, RefusedLeaf, SharedArrays, users_line, width
from .frames import ControlFlow
from .remedies import (
    Remedy,
    begin_as,
    cast_argument,
    cast_back,
    give_number,
    guard_body,
    guard_optimizer,
    leave_out_of_grad,
    own_arrays,
    return_from_branches,
)
from .trial import drifts_with

Candidate = list[Remedy]  # all that is to be written, for all leaves


@dataclasses.dataclass(frozen=True)
class Advice:
    """What to write.

    Attributes:
        first: the best; empty if nothing is known that helps.
        second: what to write in its place; empty if there is nothing else.
        is_checked: whether the types agreed when it was tried.
    """

    first: Candidate
    second: Candidate
    is_checked: bool = False


def choose(finding: Finding, sites: Sequence[Site]) -> Advice:
    """Returns the best remedies for an error, and those to take in their place."""
    leaves = finding.leaves
    cause = finding.cause
    if isinstance(cause, SharedArrays):
        return Advice([own_arrays(leaves, cause.holder)], [])
    if _is_of_optimizer(finding, sites):
        return Advice([guard_optimizer(leaves)], _begin_wider(cause, leaves))
    if isinstance(cause, RefusedCall):
        return _first_two(_for_call(cause, leaves))
    if cause.is_loop:
        return _for_loop(cause, leaves)
    return _for_branches(leaves)


def _first_two(candidates: Iterable[Candidate], is_checked: bool = False) -> Advice:
    possible = [candidate for candidate in candidates if candidate]
    if not possible:
        return Advice([], [])
    second = possible[1] if len(possible) > 1 else []
    return Advice(possible[0], second, is_checked)


def _is_of_optimizer(finding: Finding, sites: Sequence[Site]) -> bool:
    """Returns whether an Optax optimizer made the call, or has all the lines."""
    frames = []
    for site in reversed(sites):
        if not is_installed(site.file):
            break  # the user's own function, which the optimizer may have called
        frames.append(frame_of(site.frame))
    if is_update(frames):
        return True
    if isinstance(finding.cause, RefusedCall):
        return False
    # What a branch passes on was not made by its optimizer.
    changed = [leaf for leaf in finding.leaves if leaf.why.origin and not leaf.passed_on]
    return bool(changed) and all(leaf.is_of_optimizer for leaf in changed)


def _begin_wider(
    cause: ControlFlow | RefusedCall, leaves: Sequence[RefusedLeaf]
) -> Candidate:
    """Returns the remedy to begin an optimizer's leaves wider; empty if it does not help.

    It takes more memory. But an average that a guard keeps in 16 bits may not move.
    """
    if not isinstance(cause, ControlFlow) or not cause.is_loop:
        return []
    if not all(leaf.widens for leaf in leaves):
        return []
    remedies = [_begin(leaf, cause) for leaf in leaves]
    return remedies if drifts_with(cause.bodies["body"], remedies) == {} else []


# Loops


def _for_loop(loop: ControlFlow, leaves: Sequence[RefusedLeaf]) -> Advice:
    """Returns the first two candidates with which the types agree, or may agree."""
    possible = []
    is_checked = False
    body = loop.bodies["body"]
    for candidate in _candidates_for_loop(loop, leaves):
        drifts = drifts_with(body, candidate)
        changed = list(leaves)
        # What begins wider makes others wider that meet it: these begin so as well.
        while drifts and (widened := _leaves_that_widen(loop, changed, drifts)):
            changed += widened
            candidate = candidate + [_begin(leaf, loop) for leaf in widened]
            drifts = drifts_with(body, candidate)
        # That a leaf agrees which is cast back is no news.
        is_checked |= drifts == {} and any(remedy.begins for remedy in candidate)
        if not drifts:
            possible.append(candidate)
    return _first_two(possible, is_checked)


def _leaves_that_widen(
    loop: ControlFlow, leaves: Sequence[RefusedLeaf], drifts: dict[int, Leaf]
) -> list[RefusedLeaf]:
    """Returns the leaves that become wider once some leaves begin wider."""
    body = loop.bodies["body"]
    known_places = [leaf.place for leaf in leaves]
    widened = []
    for place, after in drifts.items():
        first = loop.first[place]
        path = loop.path(body.name + body.carried.paths[place])
        why = Why(begun=of_leaf(first))
        leaf = RefusedLeaf(-1, path, (first, after), why, place)
        if place not in known_places and leaf.widens:
            widened.append(leaf)
    return widened


def _candidates_for_loop(
    loop: ControlFlow, leaves: Sequence[RefusedLeaf]
) -> list[Candidate]:
    function = _users_function(leaves)
    if loop.is_of_jax or (is_installed(loop.file) and function is None):
        # Nobody edits its body: a leaf can only begin otherwise, where it begins.
        has_lines = all(users_line(leaf.why.begun) for leaf in leaves)
        return [[_begin(leaf, loop) for leaf in leaves]] if has_lines else []
    lossless: Candidate = []
    for leaf in leaves:
        if leaf.is_of_optimizer:
            continue  # no line of the user is wrong
        if leaf.widens:
            lossless.append(_begin(leaf, loop))
        else:
            lossless.append(cast_back(leaf, users_line(leaf.why.origin)))
    guard = _guard_remedy(loop, leaves, function)
    if guard is None or not all(leaf.is_castable for leaf in leaves):
        return [lossless]  # no guard casts a shape or a kind back
    if any(leaf.is_of_optimizer for leaf in leaves):
        lossless.append(guard)  # the optimizer's leaves are left to it
    return [lossless] if lossless == [guard] else [lossless, [guard]]


def _begin(leaf: RefusedLeaf, loop: ControlFlow) -> Remedy:
    # Where the line of the first value is not known, the call of the loop has it.
    line = users_line(leaf.why.begun) or users_line(loop.line)
    return begin_as(leaf, line, leaf.dtype)


def _guard_remedy(
    loop: ControlFlow, leaves: Sequence[RefusedLeaf], function: Frame | None
) -> Remedy | None:
    """Returns a guard of the body; None where a package hides the carry from it.

    Args:
        loop: the loop.
        leaves: those that it refuses.
        function: the user's function in the body of a package.
    """
    if not is_installed(loop.file):
        code = loop.bodies["body"].code
        name = _as_written(code.co_name if code else "body")
        line = users_line(loop.line)
        return guard_body(leaves, line, "the body", name, loop.kind.carry)
    library = package(loop.file)
    if function is None or library in STATEFUL:
        return None
    name = function.function.rpartition("<locals>.")[2]
    carry = loop.carry
    if short_path(loop.file).startswith(os.path.join("flax", "core")):
        # Linen gives a function its module before the carry, and a method as `self`.
        carry = 0 if "." in name else 1
    return guard_body(leaves, "", f"what you give to {library}", _as_written(name), carry)


def _users_function(leaves: Sequence[RefusedLeaf]) -> Frame | None:
    """Returns the outermost of the user's functions that gave a leaf its type."""
    for leaf in leaves:
        if leaf.why.origin and leaf.why.origin.outermost:
            return leaf.why.origin.outermost
    return None


def _as_written(name: str) -> str:
    return name if name.replace(".", "").isidentifier() else "lambda ..."


# Branches


def _for_branches(leaves: Sequence[RefusedLeaf]) -> Advice:
    if not any(users_line(leaf.why.origin) for leaf in leaves):
        return Advice([], [])  # the branches of a package
    first: Candidate = []
    second: Candidate = []
    for results in grouped(leaves, lambda leaf: leaf.path):
        advice = _first_two(_candidates_for_result(results))
        first += advice.first
        second += advice.second
    return Advice(first, second)


def _candidates_for_result(results: Sequence[RefusedLeaf]) -> list[Candidate]:
    """Returns what to write for a result that branches return in different dtypes."""
    # A number of Python's gives way to an array.
    arrays = [leaf for leaf in results if not is_weak(leaf.values[-1])]
    dtypes = {leaf.dtype for leaf in arrays or results}
    highest_rank = max(rank(leaf.dtype) for leaf in results)
    candidates = []
    for dtype in sorted(dtypes, key=width, reverse=True):
        changed = [leaf for leaf in results if leaf.dtype != dtype]
        # A float that becomes an int loses its fraction.
        if changed and rank(dtype) == highest_rank:
            # What a branch passes on was made elsewhere, which is no line to cast it on.
            is_on_one_line = len(changed) == 1 and not changed[0].passed_on
            line = users_line(changed[0].why.origin) if is_on_one_line else ""
            candidates.append([return_from_branches(changed, line, dtype)])
    return candidates


# Arguments


def _for_call(call: RefusedCall, leaves: Sequence[RefusedLeaf]) -> list[Candidate]:
    if call.is_only_for_ints:
        return []
    if call.is_of_ints_beside_floats:
        return _for_ints_in_grad(call, leaves)
    if any(leaf.wanted for leaf in leaves):
        return [_as_arguments(leaves, call.site)]
    if not all(leaf.argument for leaf in leaves):
        return []  # the cotangents of a rule that is not known
    candidates = _as_arguments_of_one_dtype(leaves, _meeting(leaves), call.site)
    if not any(candidates):
        # What a package computed cannot be changed: what it is written into can.
        dtypes = [leaf.dtype for leaf in leaves]
        candidates = _as_arguments_of_one_dtype(leaves, dtypes, call.site)
    return candidates


def _as_arguments_of_one_dtype(
    leaves: Sequence[RefusedLeaf], dtypes: Iterable[DType], site: Site
) -> list[Candidate]:
    candidates = []
    for dtype in dtypes:
        wanted = [dataclasses.replace(leaf, wanted=dtype) for leaf in leaves]
        candidates.append(_as_arguments(wanted, site))
    return candidates


def _for_ints_in_grad(call: RefusedCall, leaves: Sequence[RefusedLeaf]) -> list[Candidate]:
    # To train a counter would do harm: a bias that is left out is not learned, and seen.
    line = line_text(call.site.file, call.site.line)
    if kind(leaves[0].dtype) is None:  # a gradient, which `grad` made on an earlier line
        line = users_line(leaves[0].why.origin)
    begin: Candidate = []
    for leaf in leaves:
        made_at = users_line(leaf.why.origin)
        if made_at and leaf.wanted:
            begin.append(begin_as(leaf, made_at, leaf.wanted))
    return [[leave_out_of_grad(leaves, line)], begin if len(begin) == len(leaves) else []]


def _as_arguments(leaves: Sequence[RefusedLeaf], site: Site) -> Candidate:
    """Returns what to write for the arguments that are not of the dtype wanted."""
    remedies = []
    for leaf in leaves:
        # Only what the user made can be changed in the call of a package.
        is_users = not is_installed(site.file) or users_line(leaf.why.origin)
        if leaf.wanted and leaf.wanted != leaf.dtype and is_users:
            remedies.append(_as_argument(leaf, leaf.wanted, site))
    return remedies


def _as_argument(leaf: RefusedLeaf, dtype: DType, site: Site) -> Remedy:
    """Returns the remedy for an argument, where it is made or in the call."""
    made_at = users_line(leaf.why.origin)
    is_for_call = _is_made_for_it(leaf, dtype)
    is_changed_where_made = is_installed(site.file) or is_for_call or not leaf.argument
    line = made_at if made_at and is_changed_where_made else _line_in_call(leaf, site)
    leaf = dataclasses.replace(leaf, path=_name_of_leaf(leaf))
    if is_python_number(leaf.values[-1]):
        return give_number(leaf, line, dtype)
    if made_at and is_for_call:
        return begin_as(leaf, line, dtype)
    return cast_argument(leaf, line, dtype)


def _is_made_for_it(leaf: RefusedLeaf, dtype: DType) -> bool:
    """Returns whether the line that made an argument is to be changed, not the call."""
    if leaf.why.cause is not None:
        return False  # it was computed of others
    is_of_one_kind = kind(dtype) == kind(leaf.dtype)
    if is_of_one_kind and width(dtype) > width(leaf.dtype):
        return True  # no later cast brings back the digits that this line has rounded
    if leaf.why.is_promoted:
        return False
    is_part = leaf.argument is not None and not leaf.argument.is_whole
    return _is_of_host(leaf.values[-1]) or is_part or not is_of_one_kind


def _is_of_host(value: Leaf) -> bool:
    return is_python_number(value) or isinstance(value, (np.ndarray, np.generic))


def _name_of_leaf(leaf: RefusedLeaf) -> str:
    """Returns an argument as the call writes it."""
    argument = leaf.argument
    if argument is not None and argument.is_whole and argument.text:
        return argument.text
    return leaf.path


def _line_in_call(leaf: RefusedLeaf, site: Site) -> str:
    """Returns the line of an argument, in a call over several lines."""
    source = leaf.argument.source if leaf.argument else None
    return line_text(site.file, site.line if source is None else source.lineno)


# The arguments that others are written into: a function returns in their dtype.
_WRITTEN_INTO = ("operand", "array", "primals")


def _meeting(leaves: Sequence[RefusedLeaf]) -> list[DType]:
    """Returns the dtypes in which arguments meet, the best first; none if they cannot."""
    dtypes = sorted({leaf.dtype for leaf in leaves}, key=width, reverse=True)
    if not all(kind(dtype) for dtype in dtypes):
        return []
    by_name = {leaf.argument.base: leaf.dtype for leaf in leaves if leaf.argument}
    if by_name.keys() <= {"lower", "upper"}:
        return [jnp.dtype("int32")]  # the bounds of a loop
    for name in _WRITTEN_INTO:
        if name in by_name:
            return [by_name[name]]
    return [dtype for dtype in dtypes if rank(dtype) == rank(dtypes[0])]
