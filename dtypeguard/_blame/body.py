"""The functions that JAX traces for its control flow, as programs to be asked for lines."""

import dataclasses
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Literal

import numpy as np
from jax import tree_util

from .._carry.places import Names
from .._carry.split import SplitTree
from .._leaves.dtypes import is_weak
from .._leaves.key_path import TreeName, key_value
from .._leaves.types import Aval, Jaxpr, Leaf, PyTree, Step
from .._program.graph import Graph
from .._program.trace import Program, strong_type
from .._source.inert import written_code
from .._source.origin import Why, origin_of_code
from .drift import Drift, find
from .provenance import of_leaf, of_value
from .why import Has, lines_beyond, why


@dataclasses.dataclass(frozen=True)
class Body:
    """A function that JAX traces: the body of a loop, its condition, a branch, a loss.

    Attributes:
        function: as JAX was given it.
        inputs: its arguments, or their types.
        carry: the position of the argument that comes back, in a loop.
        is_pair: whether it returns a pair, of which only the first item counts.
        jaxprs: those that may be its own.
    """

    function: Step
    inputs: tuple[PyTree, ...]
    carry: int = 0
    is_pair: bool = False
    jaxprs: Sequence[Jaxpr] = ()

    @property
    def code(self) -> CodeType | None:
        """The code of the function, inside of partial ones and of wrappers."""
        return written_code(self.function)

    @property
    def name(self) -> str:
        """The name of the function for the carry."""
        return Names(self.function).at(self.carry)

    @property
    def carried(self) -> SplitTree:
        """The types of the carry."""
        carry = self.inputs[self.carry]
        types = tree_util.tree_map(strong_type, carry)
        return SplitTree(types)

    def program(self, jaxpr: Jaxpr) -> Program | None:
        """Returns a jaxpr as a program with the carry first; None if it does not fit.

        A body has the index of a `fori_loop` before its carry, and the slices and results
        of a `scan` behind it.
        """
        graph = Graph(jaxpr, len(tree_util.tree_leaves(self.inputs)))
        carried = self.carried
        count = len(carried.arrays)
        arguments_behind = self.inputs[self.carry + 1 :]
        leaves_behind = len(tree_util.tree_leaves(arguments_behind))
        start = len(graph.inputs) - leaves_behind - count
        # A pair ends with what is no carry, others begin with it.
        skipped = 0
        if not self.is_pair:
            skipped = len(graph.outputs) - count
        if start < 0 or len(graph.outputs) < count:
            return None
        carry = graph.inputs[start : start + count]
        beside = graph.inputs[:start] + graph.inputs[start + count :]
        graph.inputs = carry + beside
        graph.outputs = graph.outputs[skipped : skipped + count]
        types = []
        for value in graph.outputs:
            aval = graph.avals[value]
            types.append(strong_type(aval))
        returned = SplitTree(carried.merged(types))
        return Program(None, graph, (self.name,), (carried,), (returned,))

    def results(self) -> "Results":
        """Returns what it returns, to be asked for lines."""
        graph = Graph(self.jaxprs[0], len(tree_util.tree_leaves(self.inputs)))
        return Results(self, graph)

    def drifts(self, first: Sequence[Leaf]) -> Iterator[Iterator[Drift]]:
        """Yields what drifts, by each jaxpr that may be the body's.

        Args:
            first: the values with which its inputs begin.
        """
        for jaxpr in self.jaxprs:
            program = self.program(jaxpr)
            if program is not None:
                yield self._drifts_in(program, first)

    def _drifts_in(self, program: Program, first: Sequence[Leaf]) -> Iterator[Drift]:
        graph = program.step
        beyond_graph = lines_beyond(graph)
        # The record knows Python numbers by name.
        paths = [(TreeName(self.name), *path) for path in self.carried.key_paths]
        names = [str(key_value(path[-1])) for path in paths]
        first_leaves = dict(zip(graph.inputs, first))
        names_by_value = dict(zip(graph.inputs, names))

        def beyond(value: int) -> Why:
            if value not in graph.inputs:
                return beyond_graph(value)
            leaf = first_leaves.get(value)
            return Why(of_leaf(leaf, names_by_value.get(value, "")))

        # A loop takes weak leaves for strong ones.
        for drift in find(program, beyond):
            if drift.kind in ("dtype", "shape"):
                yield drift


@dataclasses.dataclass(frozen=True)
class Results:
    """The results of a function that JAX traced."""

    body: Body
    graph: Graph

    @property
    def avals(self) -> list[Aval]:
        """The abstract values of the results."""
        return [self.graph.avals[output] for output in self.graph.outputs]

    def lines(self, number: int, kind: str = "dtype") -> tuple[Why, str]:
        """Returns the lines behind a result's type, and how it is returned unchanged."""
        graph = self.graph
        output = graph.outputs[number]
        if output in graph.inputs:
            arguments = tree_util.tree_leaves(self.body.inputs)
            place = graph.inputs.index(output)
            return of_value(arguments[place]), "as it was given"
        if output not in graph.constants:
            matches = Has(kind, getattr(graph.avals[output], kind, None))
            lines = why(graph, output, matches)
            # Without an origin, a function inside returns it, and nothing promotes it.
            return (lines if lines.origin else Why(lines.cause)), ""
        has_value = graph.constants[output].value is not None
        is_number = has_value and is_weak(graph.avals[output])
        lines = Why() if is_number else lines_beyond(graph)(output)
        if lines.origin is None and self.body.code:
            # The line that returns it can be changed as well as the one that made it.
            lines = Why(origin_of_code(self.body.code), is_earlier=True)
        return lines, "" if is_number else "closed over"


def difference(before: Leaf, after: Leaf) -> Literal["dtype", "shape"] | None:
    """Returns what differs between two leaves, as loops and branches see it."""
    if getattr(before, "dtype", None) != getattr(after, "dtype", None):
        return "dtype"
    if np.shape(before) != np.shape(after):
        return "shape"
    return None
