"""The leaves that come back otherwise: from a loop's body, or from one of two branches."""

import dataclasses
import re
from collections.abc import Iterator

from jax import tree_util

from .._blame.body import difference
from .._blame.drift import Drift, drift_between
from .._blame.provenance import of_leaf, of_value
from .._leaves.dtypes import dtype_of, is_python_number, is_weak, rank
from .._leaves.key_path import KeyPath, TreeName
from .._leaves.table import count
from .._leaves.types import Aval, Leaf
from .._source.files import is_installed
from .._source.origin import Origin, Why
from .finding import Failure, Finding, RefusedLeaf
from .frames import ControlFlow, control_flow


def find_in_control_flow(failure: Failure) -> Finding | None:
    """The leaves of the first call that come back in the types which a message names."""
    for call in control_flow(failure.frames):
        find = _find_in_loop if call.is_loop else _find_in_branches
        headline, leaves = find(call, failure)
        if leaves:
            return Finding(headline, leaves, call)
    return None


def _is_meant(failure: Failure, *avals: Aval) -> bool:
    """Whether a message names dtypes, in full like JAX or abbreviated like Equinox."""
    names = [str(aval.dtype) for aval in avals]
    short = lambda x: re.sub(r"(loat|nt|omplex)(?=\d)", "", x.replace("uint", "u"))
    return all(x in failure.message or short(x) in failure.message for x in names)


# Loops


def _find_in_loop(call: ControlFlow, failure: Failure) -> tuple[str, list[RefusedLeaf]]:
    """The leaves of a carry that come back in another dtype or shape."""
    body, found = call.bodies["body"], list[RefusedLeaf]()
    places = [body.name + path for path in body.carried.paths]
    meant: dict[str, Drift] = {}
    for drifts in _drifts(call):
        for drift in drifts if not meant else ():
            if _is_meant(failure, *drift.avals):
                meant.setdefault(drift.path, drift)
    others = [x for path, x in zip(places, call.first) if path not in meant]
    for drift in meant.values():
        place = places.index(drift.path) if drift.path in places else None
        # No line in what JAX wrote is anything to the user.
        origin = drift.origin or (call.line if call.is_of_jax else None)
        first = call.first[place : place + 1] if place is not None else ()
        # To change its line would change both, as of the params of an average.
        arrays = [x for x in first if not is_python_number(x)]
        is_shared = any(x is y for x in arrays for y in others)
        begun = None if is_shared or not first else _begun(first[0], drift.keys)
        is_written = first and not arrays and failure.sites[-1].writes(first[0])
        begun = begun or (call.line if is_written else None)
        why = Why(origin, drift.cause, begun)
        leaf = RefusedLeaf(len(found), call.path(drift.path), drift.avals, why, place)
        is_rarer = is_shared or _begins_as_rarer(leaf, call)
        found.append(dataclasses.replace(leaf, begins_as_rarer=is_rarer))
    some = f"{count(found)} of the carry of {call.kind.name} come{'s' * (len(found) == 1)}"
    return f"{some} back in another type.", found


def _drifts(call: ControlFlow) -> Iterator[Iterator[Drift]]:
    """What drifts, by each jaxpr that may be the body's, or by Equinox's comparison.

    Equinox compares the carry before there is a jaxpr: then its tracers have the lines.
    """
    body = call.bodies["body"]
    yield from body.drifts(call.first)
    pairs = zip(*map(tree_util.tree_leaves, call.compared))
    yield (
        drift_between((TreeName(body.name), *path), what, old, new, lines=of_value(new))
        for path, (old, new) in zip(body.carried.key_paths, pairs)
        if (what := difference(old, new))
    )


def _begins_as_rarer(leaf: RefusedLeaf, call: ControlFlow) -> bool:
    """Whether the leaf begins in the dtype that fewer inputs of the body have.

    The odd dtype is most often the mistake: on 36 programs by others it told the line to
    change more often than whatever loses nothing.
    """
    old, new = leaf.dtypes
    begun = leaf.why.begun
    if begun is None or is_installed(begun.users.file):
        return False
    if is_weak(leaf.values[0]) or leaf.why.origin is None:
        return True
    if leaf.is_of_optimizer or leaf.why.cause is None:  # the user's own cast
        return False
    dtypes = [dtype_of(value) for value in call.first]
    return (rank(old), dtypes.count(old)) <= (rank(new), dtypes.count(new))


def _begun(first: Leaf, path: KeyPath) -> Origin | None:
    """The line that made the first value of a leaf, before that which forced its type."""
    made = of_value(first).origin
    is_own = made is not None and not is_installed(made.users.file)
    return made if is_own else of_leaf(first, str(path[-1]))


# Branches


def _find_in_branches(call: ControlFlow, failure: Failure) -> tuple[str, list[RefusedLeaf]]:
    """For each leaf that differs, what the first branch and those that differ return."""
    traced = [(name, body.results()) for name, body in call.bodies.items()]
    branches = [(name, results) for name, results in traced if results is not None]
    counts = {len(results.graph.outputs) for _, results in branches}
    differing, found = [], list[RefusedLeaf]()
    for number in range(*counts) if len(counts) == 1 else ():
        avals = [results.aval(number) for _, results in branches]
        kinds = [difference(avals[0], aval) for aval in avals]
        kinds[0] = next(filter(None, kinds), None)
        items = [(*branch, what) for branch, what in zip(branches, kinds) if what]
        if items and _is_meant(failure, *(x.aval(number) for _, x, _ in items[:2])):
            differing.append((number, items))
    # JAX names all of one branch that differ.
    paths = re.findall(r"he output of .+?(?: at path (.+?))? has type", failure.message)
    paths = paths if len(paths) == len(differing) else [f"[{n}]" for n, _ in differing]
    for path, (number, items) in zip(paths, differing):
        for name, results, what in items:
            why, kept = results.lines(number, what)
            about = len(found), call.path(f"result{path}"), (results.aval(number),), why
            found.append(RefusedLeaf(*about, branch=name, passed_on=kept))
    some = f"{count(differing)} of their result in different types."
    return f"the branches of {call.kind.name} give {some}", found
