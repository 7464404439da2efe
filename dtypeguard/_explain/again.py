"""Traces a function again after the tracers that it closes over have died."""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import NamedTuple

import jax
from jax import tree_util
from jax.core import Tracer

from .._carry.call import SplitTree
from .._leaves.functions import copy_of
from .._leaves.types import Aval, Jaxpr, Leaf, PyTree, Step
from .._program.graph import Graph
from .._program.lines import Found, Has, Lines
from .._program.trace import Program, strong_type


class Retraced(NamedTuple):
    """A function that was traced again.

    Attributes:
        program: its graph, and what it returned.
        results: the leaves that it returned, those that it closes over as they are outside.
    """

    program: Program
    results: Sequence[Leaf]


def retrace(
    function: Step, inputs: tuple[PyTree, ...], has_results: bool = False
) -> Retraced | None:
    """Traces a function again, on the types of its arguments.

    Args:
        function: a body, a branch or a loss.
        inputs: its arguments.
        has_results: whether to keep only the first item of what it returns.

    Returns:
        None if it no longer traces: an object that it uses may hold a tracer of a
        transformation that has ended.
    """
    returned: list[SplitTree] = []
    results: list[Leaf] = []

    def again(values, *inputs):  # a new function: JAX may have kept the trace of the old
        result = call(values, *inputs)
        returned.append(SplitTree(result[0] if has_results else result))
        outside = dict(zip(map(id, values), closed_over))
        results[:] = [outside.get(id(leaf), leaf) for leaf in returned[-1].arrays]
        return returned[-1].arrays

    try:
        closed_over, call = _opened(function)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first trace has warned
            types = tree_util.tree_map(strong_type, (closed_over, *inputs))
            jaxpr = jax.make_jaxpr(again)(*types)
            graph = Graph(jaxpr, len(tree_util.tree_leaves(inputs)))
            return Retraced(Program(None, graph, returned=returned[-1:]), results)
    except Exception:
        return None


class Inside(NamedTuple):
    """A traced function, and the lines in it.

    Attributes:
        graph: of its equations.
        lines: finds the lines behind its results.
        again: traces it again.
    """

    graph: Graph
    lines: Lines
    again: Callable[[], Retraced | None]

    def aval(self, number: int) -> Aval:
        """The abstract value of a result."""
        return self.graph.avals[self.graph.outputs[number]]

    def of(self, number: int, kind: str = "dtype") -> Found:
        """The lines that gave a result its dtype or its shape."""
        matches = Has(kind, getattr(self.aval(number), kind, None))
        every_input = (1 << len(self.graph.inputs)) - 1
        return self.lines.of(self.graph.outputs[number], matches, every_input)


def inside(
    function: Step,
    inputs: tuple[PyTree, ...],
    has_results: bool = False,
    jaxpr: Jaxpr | None = None,
) -> Inside | None:
    """A function to be asked for its lines; None if it no longer traces.

    Args:
        function: see `retrace`.
        inputs: see `retrace`.
        has_results: see `retrace`.
        jaxpr: of the function, if the error holds it.
    """
    again = lambda: retrace(function, inputs, has_results)
    if jaxpr is not None:
        graph = Graph(jaxpr, len(tree_util.tree_leaves(inputs)))
    elif traced := again():
        graph = traced.program.step
    else:
        return None

    def program() -> Program | None:
        traced = again()
        return traced and traced.program

    return Inside(graph, Lines(Program(None, graph), None, program), again)


def _opened(function: Step) -> tuple[list[Tracer], Step]:
    """The tracers that a function closes over, and the function of them and its arguments.

    A function that closes over functions closes over what those close over. What an object
    holds that is not a tree stays as it is, as does a tree that JAX cannot flatten.
    """
    found: list[Tracer] = []

    def keep(tracer: Tracer) -> Tracer:
        found.append(tracer)
        return tracer

    _renewed(function, keep)

    def call(values: Sequence[Leaf], *inputs: PyTree) -> PyTree:
        left = iter(values)
        return _renewed(function, lambda _: next(left))(*inputs)

    return found, call


def _renewed(function: Step, renew: Callable[[Tracer], Leaf]) -> Step:
    """A function with every tracer that it closes over replaced, in a fixed order."""
    known: dict[int, Leaf] = {}

    def new(leaf: Leaf) -> Leaf:
        if id(leaf) in known:
            return known[id(leaf)]
        if isinstance(leaf, Tracer):
            known[id(leaf)] = renew(leaf)
        elif isinstance(leaf, FunctionType) and leaf.__closure__:
            cells = [CellType() for _ in leaf.__closure__]
            # It may close over itself.
            known[id(leaf)] = copy_of(leaf, closure=tuple(cells))
            for cell, old in zip(cells, leaf.__closure__):
                try:
                    contents = old.cell_contents
                except ValueError:  # not assigned yet
                    continue
                cell.cell_contents = contents
                with contextlib.suppress(Exception):  # a dict of keys that do not sort
                    cell.cell_contents = tree_util.tree_map(new, contents)
        else:
            return leaf
        return known[id(leaf)]

    return new(function)
