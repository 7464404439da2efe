"""Finds the leaves that come back otherwise: from a loop's body, or from a branch."""

import itertools
import re
from collections.abc import Iterator
from typing import Literal

from jax import tree_util

from .._blame.behind import lines_of_equation
from .._blame.body import difference
from .._blame.drift import Drift, drift_between
from .._blame.provenance import of_leaf, of_value
from .._leaves.dtypes import dtype_of, is_python_number, kind
from .._leaves.key_path import TreeName, last_name
from .._leaves.table import count
from .._leaves.types import DType, Leaf
from .._source.origin import Why
from .finding import Failure, Finding, RefusedLeaf, users_line
from .frames import ControlFlow, control_flow


def find_in_control_flow(failure: Failure) -> Finding | None:
    """Returns the leaves of the first call that come back in the types of a message."""
    # Outside in: a `fori_loop` is the user's, the `scan` inside of it JAX's.
    for call in control_flow(failure.frames):
        find = _find_in_branches
        if call.is_loop:
            find = _find_in_loop
        finding = find(call, failure)
        if finding.leaves:
            return finding
    return None


# Loops


def _find_in_loop(call: ControlFlow, failure: Failure) -> Finding:
    """Returns the leaves of a carry that come back in another dtype or shape."""
    body = call.bodies["body"]
    paths = [body.name + path for path in body.carried.paths]
    drifts = _refused_drifts(call, failure)
    dtypes = [dtype_of(value) for value in call.first]
    right_arrays = []
    for path, first in zip(paths, call.first):
        if path not in drifts and not is_python_number(first):
            right_arrays.append(first)
    leaves = []
    for path, drift in drifts.items():
        place = paths.index(path)
        first = call.first[place]
        # No line in what JAX wrote is anything to the user.
        origin = drift.origin
        if origin is None and call.is_of_jax:
            origin = call.line
        # To change the line that made an array would change other leaves that hold it as
        # well, as the params of an average.
        is_shared = any(first is array for array in right_arrays)
        begin = Why()
        if not is_shared:
            begin = _lines_of_first(first, drift, call)
        why = Why(origin, drift.cause, begin.origin)
        counts = [dtypes.count(aval.dtype) for aval in drift.avals]
        leaf = RefusedLeaf(
            call.path(path), drift.avals, why, place, begun_for=begin.cause, counts=counts
        )
        leaves.append(leaf)
    verb = "come"
    if len(leaves) == 1:
        verb = "comes"
    loop = call.kind.name
    headline = f"{count(leaves)} of the carry of {loop} {verb} back in another type."
    return Finding(headline, leaves, call)


def _refused_drifts(call: ControlFlow, failure: Failure) -> dict[str, Drift]:
    """Returns by path what drifts between the types that a message names."""
    # A jaxpr may be of the condition: the body's has the types that are named.
    of_jaxprs = call.bodies["body"].drifts(call.first)
    for drifts in itertools.chain(of_jaxprs, [_drifts_of_equinox(call)]):
        refused: dict[str, Drift] = {}
        for drift in drifts:
            if all(_is_named(aval.dtype, failure.message) for aval in drift.avals):
                refused.setdefault(drift.path, drift)
        if refused:
            return refused
    return {}


def _is_named(dtype: DType, message: str) -> bool:
    """Returns whether a message names a dtype, in full as JAX or short as Equinox."""
    name = str(dtype)
    # bf16, f32, u8, c64
    short = name.replace("uint", "u")
    short = re.sub(r"(loat|nt|omplex)(?=\d)", "", short)
    return name in message or short in message


def _drifts_of_equinox(call: ControlFlow) -> Iterator[Drift]:
    """Yields what drifts in the trees that Equinox compares.

    It does before there is a jaxpr: then its tracers have the lines.
    """
    body = call.bodies["body"]
    pairs = zip(*map(tree_util.tree_leaves, call.compared))
    for path, (before, after) in zip(body.carried.key_paths, pairs):
        what = difference(before, after)
        if what is not None:
            place = (TreeName(body.name), *path)
            yield drift_between(place, what, before, after, lines=of_value(after))


def _lines_of_first(first: Leaf, drift: Drift, call: ControlFlow) -> Why:
    """Returns the line that made the first value of a leaf, else that of its cause."""
    before, after = drift.avals
    lines = Why()
    if kind(before.dtype) != kind(after.dtype):
        # A mask or a count is right as it is made, and wrong as the beginning of a sum.
        lines = lines_of_equation(first)
    if not users_line(lines.origin):
        name = last_name(drift.keys)
        lines = Why(of_leaf(first, name))
    if lines.origin is None and is_python_number(first):
        return Why(call.line)  # which writes the number, or is given it
    return lines


# Branches


def _find_in_branches(call: ControlFlow, failure: Failure) -> Finding:
    """Returns the leaves that differ, as each branch returns them."""
    avals_of_branches = [body.result_types for body in call.bodies.values()]
    differing: dict[int, Literal["dtype", "shape"]] = {}
    # Branches that return different trees have no leaves to compare, and no note.
    for number, avals in enumerate(zip(*avals_of_branches, strict=True)):
        for aval in avals:
            what = difference(avals[0], aval)
            if what is not None:
                differing[number] = what
    # JAX names all results of one branch that differ.
    paths = re.findall(r"he output of .+?(?: at path (.+?))? has type", failure.message)
    if len(paths) != len(differing):
        paths = [f"[{number}]" for number in differing]
    leaves = []
    for path, (number, what) in zip(paths, differing.items()):
        for name, body in call.bodies.items():
            # A branch may return what it was given: that is made outside of it.
            why, passed_on = body.lines_of_result(number, what)
            values = (body.result_types[number],)
            leaf = RefusedLeaf(
                call.path(f"result{path}"), values, why, branch=name, passed_on=passed_on
            )
            leaves.append(leaf)
    headline = (
        f"the branches of {call.kind.name} give {count(paths)} of their result in "
        "different types."
    )
    return Finding(headline, leaves, call)
