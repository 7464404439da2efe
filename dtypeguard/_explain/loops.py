"""Finds the leaves of a loop's carry that come back in another type, and their lines."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import jax
import numpy as np
from jax import tree_util

from .._carry.call import SplitTree
from .._carry.places import Names
from .._find.drift import Drift, drift_between, find
from .._leaves.dtypes import dtype_of, fits
from .._leaves.types import Jaxpr, Leaf, PyTree, Step
from .._program.graph import Graph, open_jaxpr
from .._program.lines import Lines
from .._program.origins import Origin, passes
from .._program.trace import Program, strong_type
from .again import retrace
from .control_flow import Call, code_of, is_of_jax
from .made import Makers
from .paths import users_path


class Loop(NamedTuple):
    """A loop as it was called.

    Attributes:
        body: the function that takes the carry.
        inputs: its arguments, the carry among them.
        carry: the position of the carry in `inputs`.
        has_results: whether the body returns a pair of the carry and a result.
        scanned: the arrays whose slices are among `inputs`.
    """

    body: Step
    inputs: tuple[PyTree, ...]
    carry: int
    has_results: bool
    scanned: PyTree = None

    @property
    def is_of_jax(self) -> bool:
        """Whether JAX itself wrote the body."""
        return is_of_jax(self.body)

    @property
    def name(self) -> str:
        """The body's name for the carry."""
        return Names.of(self.body).at(self.carry)

    def carried(self) -> SplitTree:
        """The types of the carry."""
        return SplitTree(tree_util.tree_map(strong_type, self.inputs[self.carry]))

    def given(self) -> list[Leaf]:
        """What the inputs of the program of the body are at first."""
        first = SplitTree(self.inputs[self.carry]).arrays
        return [*first, *tree_util.tree_leaves(self.scanned)]

    def trace(self) -> Program | None:
        """Traces the body again; None if it no longer traces."""
        traced = retrace(self.body, self.inputs, self.has_results)
        program = self.program(traced.program.step) if traced else None
        if traced is None or program is None:
            return None
        return program._replace(returned=traced.program.returned)

    def program(self, graph: Graph) -> Program | None:
        """The body as a program whose carry comes first; None if the graph is not its own.

        A body has the index of a `fori_loop` before its carry, and the slices and results
        of a `scan` behind it.
        """
        carried = self.carried()
        count = len(carried.arrays)
        behind = len(tree_util.tree_leaves(self.inputs[self.carry + 1 :]))
        start = len(graph.inputs) - behind - count
        skipped = 0 if self.has_results else len(graph.outputs) - count
        if start < 0 or skipped < 0 or len(graph.outputs) < count:
            return None
        carry = graph.inputs[start : start + count]
        graph.inputs = carry + [value for value in graph.inputs if value not in carry]
        graph.outputs = graph.outputs[skipped : skipped + count]
        types = [strong_type(graph.avals[value]) for value in graph.outputs]
        returned = SplitTree(carried.merged(types))
        return Program(None, graph, (self.name,), (carried,), (returned,))


def loop_of(call: Call) -> Loop | None:
    """The loop of a call; None if the traceback no longer holds it."""
    given = call.arguments
    try:
        if call.name == "scan":
            xs = given.get("xs")
            slices = tree_util.tree_map(_slice, xs)
            return Loop(given["f"], (given["init"], slices), 0, True, xs)
        if call.name == "fori_loop":
            index = jax.ShapeDtypeStruct((), dtype_of(given["lower"]))
            return Loop(given["body_fun"], (index, given["init_val"]), 1, False)
        if "body_fun" not in given and call.is_equinox:
            # Equinox deletes its arguments; the frame that compares the carry has them.
            last = call.frames[-1].f_locals
            return Loop(last["body_fun"], (last["val"],), 0, False)
        return Loop(given["body_fun"], (given["init_val"],), 0, False)
    except (KeyError, AttributeError, IndexError):
        return None


def drifts(call: Call, makers: Makers, is_meant: Callable[[Drift], bool]) -> list[Drift]:
    """The leaves of a loop's carry that come back in another dtype or shape.

    Without a jaxpr of the body in the traceback the body is traced again. Equinox compares
    the carry before there is a jaxpr: if the body no longer traces, the two sides that
    Equinox compares remain, without lines.

    Args:
        call: of the loop.
        makers: find what the loop was given.
        is_meant: whether the error is about a leaf.
    """
    loop = loop_of(call)
    if loop is None:
        return []
    users, first = users_path(call.caller), loop.given()

    def made(number: int) -> Origin | None:
        return makers.of_leaf(first[number]) if number < len(first) else None

    lines = functools.partial(
        Lines, watch=None, retrace=loop.trace, holding=makers.holding, given=made
    )
    for drifting in _drifts(call, loop, lines):
        found: dict[str, Drift] = {}
        for each in drifting:
            if each.kind in ("dtype", "shape") and is_meant(each):
                found.setdefault(each.path, each)
        if found:
            paths = [loop.name + path for path in loop.carried().paths]
            return [
                dataclasses.replace(x, path=users(path), begun=made(paths.index(path)))
                for path, x in found.items()
            ]
    return []


def _drifts(
    call: Call, loop: Loop, lines: Callable[[Program], Lines]
) -> Iterator[Iterable[Drift]]:
    """What drifts in each jaxpr that may be the body's."""
    arguments = len(tree_util.tree_leaves(loop.inputs))
    # The condition of a loop may stand next to its body.
    held = sorted(call.jaxprs(), key=lambda pair: "body" not in pair[0])
    # What runs backwards has the lines of the forward call, unless it is traced apart.
    held = [jaxpr for _, jaxpr in held]
    is_apart = call.is_equinox or not any(_has_lines_of(loop, jaxpr) for jaxpr in held)
    again = loop.trace() if is_apart else None
    for program in (again, *(loop.program(Graph(jaxpr, arguments)) for jaxpr in held)):
        if program:
            yield find(program, lines(program))
    if call.is_equinox:
        yield _compared(call, loop)


def can_start_as_returned(call: Call) -> bool | None:
    """Whether a loop keeps its types if it starts with those that come back.

    Leaves that a cast brings back keep the types that they start with. None if its body no
    longer traces.
    """
    loop = loop_of(call)
    program = loop.trace() if loop else None
    if loop is None or program is None:
        return None
    pairs = list(zip(loop.carried().arrays, program.returned[0].arrays))
    kept = [old if _is_castable(old, new) else strong_type(new) for old, new in pairs]
    inputs = list(loop.inputs)
    inputs[loop.carry] = loop.carried().merged(kept)
    program = loop._replace(inputs=tuple(inputs)).trace()
    if program is None:
        return False
    returned = program.returned[0].arrays
    return all(
        _is_castable(old, new) or not difference(old, new)
        for old, new in zip(kept, returned)
    )


def _is_castable(before: Leaf, after: Leaf) -> bool:
    return fits(before.dtype, after.dtype) and np.shape(before) == np.shape(after)


def _has_lines_of(loop: Loop, jaxpr: Jaxpr) -> bool:
    """Whether the lines in a jaxpr are those of a loop's body."""
    code, equations = code_of(loop.body), open_jaxpr(jaxpr).eqns
    return code is None or not equations or any(passes(eqn, code) for eqn in equations)


def _compared(call: Call, loop: Loop) -> Iterator[Drift]:
    """What differs between the two carries that Equinox compares, without lines."""
    last = call.frames[-1].f_locals
    pair = last.get("buffer_val"), last.get("buffer_val2")
    if call.name == "scan":  # its loop carries an index and the results as well
        pair = tuple(each[1] for each in pair if isinstance(each, tuple) and len(each) == 3)
    before, after = map(tree_util.tree_leaves, pair)
    for path, old, new in zip(loop.carried().paths, before, after):
        if kind := difference(old, new):
            yield drift_between(loop.name + path, kind, old, new)


def difference(before: Leaf, after: Leaf) -> Literal["dtype", "shape"] | None:
    """What differs between two leaves, as loops and branches see it; None if nothing."""
    if getattr(before, "dtype", None) != getattr(after, "dtype", None):
        return "dtype"
    return "shape" if np.shape(before) != np.shape(after) else None


def _slice(leaf: Leaf) -> jax.ShapeDtypeStruct:
    array = strong_type(leaf)
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)
