"""Chooses what to write: candidates in their order, of which the first that fits is said.

What loses nothing comes first: a leaf begins wider, and nothing is narrowed that may be
widened. A float is made an int for an index or a size alone. Whether the leaves of a loop
agree afterwards is tried, and not reasoned about.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp

from .._blame.provenance import of_leaf
from .._leaves.dtypes import is_python_number, is_weak, kind, rank
from .._leaves.internals import STATEFUL
from .._leaves.table import grouped
from .._leaves.types import DType, Leaf
from .._source.files import is_installed, line_text, package, short_path
from .._source.origin import Frame, Why, frame_of, is_update
from .._tracebacks.sites import Site
from .derivatives import differentiated
from .finding import (
    NO_ARGUMENT,
    Finding,
    RefusedLeaf,
    SharedArrays,
    users_line,
    width,
)
from .frames import ControlFlow
from .remedies import (
    NAMES,
    Remedy,
    begin_as,
    cast,
    give_number,
    guard_body,
    guard_optimizer,
    leave_out_of_grad,
    own_arrays,
    wrap_raw_key,
)
from .trial import drifts_with

Candidate = list[Remedy]  # all that is to be written, for all leaves
Leaves = Sequence[RefusedLeaf]


@dataclasses.dataclass(frozen=True)
class Advice:
    """What to write.

    Attributes:
        candidates: the best first, of which two are said; none if nothing is known.
        is_checked: whether the types agreed when the best was tried.
    """

    candidates: Sequence[Candidate]
    is_checked: bool = False


def choose(finding: Finding, sites: Sequence[Site]) -> Advice:
    """Returns the best remedies for an error, and those to take in their place."""
    leaves = finding.leaves
    cause = finding.cause
    if isinstance(cause, SharedArrays):
        return Advice([[own_arrays(leaves, cause.holder)]])
    if any(map(_has_key, leaves)):
        remedies = []
        for leaf in leaves:
            if "int" in map(kind, leaf.dtypes):
                remedies.append(wrap_raw_key(leaf))
        return Advice([remedies])
    is_of_optimizer = _is_of_optimizer(finding, sites)
    if isinstance(cause, ControlFlow) and cause.is_loop:
        return _that_agree(cause, _for_loop(cause, leaves, is_of_optimizer))
    if is_of_optimizer:
        return Advice([[guard_optimizer(leaves)]])
    if isinstance(cause, Site):
        return Advice(_for_call(cause, leaves))
    return Advice(_for_branches(leaves))


def _has_key(leaf: RefusedLeaf) -> bool:
    """Returns whether a leaf has a dtype of random keys, to which nothing is cast."""
    return any(jnp.issubdtype(dtype, jax.dtypes.extended) for dtype in leaf.dtypes)


def _is_of_optimizer(finding: Finding, sites: Sequence[Site]) -> bool:
    """Returns whether an Optax optimizer made the call, or has all the lines."""
    # Up to the user's own function, which the optimizer may have called.
    installed_frames = []
    for site in reversed(sites):
        if not is_installed(site.file):
            break
        installed_frames.append(frame_of(site.frame))
    if is_update(installed_frames):
        return True
    if isinstance(finding.cause, Site):
        return False
    verdicts = set()
    for leaf in finding.leaves:
        # What a branch passes on was not made by its optimizer.
        if leaf.why.origin and not leaf.passed_on:
            verdicts.add(leaf.is_of_optimizer)
    return verdicts == {True}


# Loops


def _that_agree(loop: ControlFlow, candidates: Iterable[Candidate]) -> Advice:
    """Returns the candidates with which the types agree, or may agree."""
    possible = []
    is_checked = False
    for candidate in candidates:
        drifts = _drifts_of_widened(loop, candidate)
        if drifts or not candidate:
            continue
        if not possible:
            is_checked = drifts is not None
        possible.append(candidate)
    return Advice(possible, is_checked)


def _drifts_of_widened(loop: ControlFlow, candidate: Candidate) -> dict[int, Leaf] | None:
    """Returns what still drifts, once all begin wider that a candidate makes wider.

    The remedies for these leaves are added to the candidate.
    """
    body = loop.bodies["body"]
    while True:
        drifts = drifts_with(body, candidate)
        changed = {leaf.place for remedy in candidate for leaf in remedy.leaves}
        widened = []
        for place, after in (drifts or {}).items():
            first = loop.first[place]
            path = loop.path(body.name + body.carried.paths[place])
            lines = Why(begun=of_leaf(first))
            leaf = RefusedLeaf(path, (first, after), lines, place)
            if place not in changed and leaf.widens:
                widened.append(_begin(leaf, loop))
        if not widened:
            return drifts
        candidate += widened


def _for_loop(
    loop: ControlFlow, leaves: Leaves, is_of_optimizer: bool
) -> Iterator[Candidate]:
    begins = [_begin(leaf, loop) for leaf in leaves]
    if is_of_optimizer:
        yield [guard_optimizer(leaves)]
        # To begin wider takes more memory. But an average may not move in 16 bits.
        if all(leaf.widens for leaf in leaves):
            yield begins
        return
    function = _users_function(leaves)
    if loop.is_of_jax or (is_installed(loop.file) and function is None):
        # Nobody edits its body: a leaf can only begin otherwise, where it begins.
        if all(leaf.begun_at for leaf in leaves):
            yield begins
        return
    changes = []
    for leaf, begin in zip(leaves, begins):
        before = leaf.first_dtype
        if leaf.is_of_optimizer:
            continue  # no line of the user is wrong
        if leaf.is_odd_after or not leaf.widens:
            write = f"cast {NAMES} back to {before}"
            begin = cast(leaf, leaf.made_at, before, write)
        changes.append(begin)
    guards = _guards(loop, leaves, function)
    if len(changes) < len(leaves):
        changes += guards  # the optimizer's leaves are left to it
    yield changes
    if all(leaf.is_odd_after for leaf in leaves):
        yield begins
    else:
        yield guards


def _begin(leaf: RefusedLeaf, loop: ControlFlow) -> Remedy:
    # Where the line of the first value is not known, the call of the loop has it.
    line = leaf.begun_at or users_line(loop.line)
    return begin_as(leaf, line, leaf.dtype)


def _guards(loop: ControlFlow, leaves: Leaves, function: Frame | None) -> Candidate:
    """Returns a guard of the body; none where it cannot cast what is carried.

    Args:
        loop: the loop.
        leaves: those that it refuses.
        function: the user's function in the body of a package.
    """
    library = package(loop.file)
    # It casts no shape or kind back, and some packages hide the carry from it.
    if library in STATEFUL or not all(leaf.is_castable for leaf in leaves):
        return []
    if function is None or not library:
        name = getattr(loop.bodies["body"].code, "co_name", "body")
        line = users_line(loop.line)
        return [guard_body(leaves, line, "the body", name, loop.kind.carry)]
    name = function.function.rpartition("<locals>.")[2]
    carry = loop.carry
    if short_path(loop.file).startswith(os.path.join("flax", "core")):
        # Linen gives a function its module before the carry, and a method as `self`.
        carry = 1
        if "." in name:
            carry = 0
    return [guard_body(leaves, "", f"what you give to {library}", name, carry)]


def _users_function(leaves: Leaves) -> Frame | None:
    """Returns the outermost of the user's functions that gave a leaf its type."""
    for leaf in leaves:
        origin = leaf.why.origin
        if origin and origin.outermost:
            return origin.outermost
    return None


# Branches


def _for_branches(leaves: Leaves) -> list[Candidate]:
    first: Candidate = []
    second: Candidate = []
    if any(leaf.made_at for leaf in leaves):  # else the branches are of a package
        for results in grouped(leaves, lambda leaf: leaf.path):
            remedies = []
            for dtype in _dtypes_to_meet_in(results):
                remedies += _let_branches_return(results, dtype)
            first += remedies[:1]
            second += remedies[1:2]
    return [first, second]


def _let_branches_return(results: Leaves, dtype: DType) -> Candidate:
    """Returns what to write for a result that all branches are to return in a dtype."""
    changed = [leaf for leaf in results if leaf.dtype != dtype]
    if not changed:
        return []  # their shapes differ
    leaf = changed[0]
    # A loop around the branches may carry on what a branch passes on.
    is_made_elsewhere = leaf.passed_on and leaf.made_at and not leaf.why.is_earlier
    if is_made_elsewhere and leaf.is_narrower_than(dtype):
        return [begin_as(leaf, leaf.made_at, dtype)]
    branches = " and ".join(leaf.branch for leaf in changed)
    is_on_one_line = len(changed) == 1 and not leaf.passed_on
    line = ""
    if is_on_one_line:
        line = leaf.made_at
    write = f"let {branches} return {NAMES} as {dtype}"
    return [cast(leaf, line, dtype, write)]


def _dtypes_to_meet_in(leaves: Leaves) -> list[DType]:
    """Returns the dtypes to which all leaves can be cast, the widest first."""

    def standing(leaf: RefusedLeaf) -> tuple[int, bool]:
        # A float that becomes an int loses its fraction, and a number of Python's gives
        # way to an array.
        return rank(leaf.dtype), not is_weak(leaf.value)

    highest = max(map(standing, leaves))
    dtypes = set()
    for leaf in leaves:
        if standing(leaf) == highest:
            dtypes.add(leaf.dtype)
    return sorted(dtypes, key=width, reverse=True)


# Arguments

# The arguments that others are written into: a function returns in their dtype.
_WRITTEN_INTO = ("operand", "array", "primals")


def _for_call(site: Site, leaves: Leaves) -> list[Candidate]:
    wanted = _as_arguments(leaves, site)
    # To train a counter would do harm: a bias that is left out is not learned, and seen.
    if any(kind(leaf.dtype) is None for leaf in leaves):  # `grad` made it on another line
        return [[leave_out_of_grad(leaves, leaves[0].made_at)]]
    positions = differentiated(site)
    is_whole = all(leaf.argument.is_whole for leaf in leaves)
    if len(positions) > 1 or (positions and not is_whole):
        line = line_text(site.file, site.line)
        return [[leave_out_of_grad(leaves, line)], wanted]
    if any(leaf.wanted for leaf in leaves):
        return [wanted]
    if leaves[0].argument is NO_ARGUMENT:
        return []  # the cotangents of a rule that is not known
    # What a package computed cannot be changed: what it is written into can.
    own_dtypes = [leaf.dtype for leaf in leaves]
    for dtypes in (_meeting(leaves), own_dtypes):
        possible = []
        for dtype in dtypes:
            candidate = _as_arguments(leaves, site, dtype)
            if candidate:
                possible.append(candidate)
        if possible:
            return possible
    return []


def _meeting(leaves: Leaves) -> list[DType]:
    """Returns the dtypes in which arguments meet, the best first."""
    if all(leaf.argument.base in ("lower", "upper") for leaf in leaves):
        return [jnp.dtype("int32")]  # the bounds of a loop
    dtypes = [leaf.dtype for leaf in leaves if leaf.argument.base in _WRITTEN_INTO]
    return dtypes or _dtypes_to_meet_in(leaves)


def _as_arguments(leaves: Leaves, site: Site, dtype: DType | None = None) -> Candidate:
    """Returns what to write for the arguments that are not of the dtype wanted."""
    remedies = []
    for leaf in leaves:
        wanted = leaf.wanted or dtype
        if wanted is None or wanted == leaf.dtype:
            continue
        line = _line_to_change(leaf, wanted, site)
        if line:
            remedies.append(_as_argument(leaf, wanted, line))
    return remedies


def _line_to_change(leaf: RefusedLeaf, dtype: DType, site: Site) -> str:
    """Returns the line that makes an argument, or its call; empty if it is a package's."""
    argument = leaf.argument
    if argument.source is None and argument.path:
        line = leaf.why.origin and leaf.why.origin.users
        is_on_line = line and (line.file, line.line) == (site.file, site.line)
        if is_on_line and not is_python_number(leaf.value):
            return ""  # JAX has made it in the call
        # Its other uses in the call are refused as well.
        return users_line(leaf.why.root)
    is_of_user = argument is not NO_ARGUMENT and not is_installed(site.file)
    # What is only to be rounded for this call is needed as it is elsewhere, and so is a
    # float that was computed: an interpolation has its fraction for a weight.
    if kind(leaf.dtype) == kind(dtype):
        is_needed = argument.is_whole and not leaf.is_narrower_than(dtype)
    else:
        is_of_jax = isinstance(leaf.value, jax.Array) and not leaf.passed_on
        is_needed = is_of_jax and leaf.is_computed
    if is_of_user and (is_needed or not leaf.made_at):
        # The call may take several lines.
        line = getattr(argument.source, "lineno", site.line)
        return line_text(site.file, line)
    return leaf.made_at


def _as_argument(leaf: RefusedLeaf, dtype: DType, line: str) -> Remedy:
    """Returns the remedy for an argument at a line."""
    if is_python_number(leaf.value):
        return give_number(leaf, line, dtype)
    has_source = leaf.why.cause is not None
    is_promoted = leaf.why.is_promoted and not leaf.is_narrower_than(dtype)
    if line == leaf.made_at and not has_source and not is_promoted:
        return begin_as(leaf, line, dtype)
    return cast(leaf, line, dtype, f"cast {NAMES} to {dtype}")
