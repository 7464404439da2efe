"""The functions that JAX traces for its control flow, as programs to be asked for lines."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Literal

import numpy as np
from jax import tree_util

from .._carry.places import Names
from .._carry.split import SplitTree
from .._leaves.dtypes import is_weak
from .._leaves.key_path import last_name
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
        return SplitTree(tree_util.tree_map(strong_type, carry))

    def program(self, jaxpr: Jaxpr) -> Program | None:
        """Returns a jaxpr as a program with the carry first; None if it does not fit.

        A body has the index of a `fori_loop` before its carry, and the slices and results
        of a `scan` behind it.
        """
        graph = self._graph(jaxpr)
        carried = self.carried
        count = len(carried.arrays)
        inputs_behind = self.inputs[self.carry + 1 :]
        leaves_behind = tree_util.tree_leaves(inputs_behind)
        # From the end: what JAX puts before the arguments differs from loop to loop.
        end = len(graph.inputs) - len(leaves_behind)
        start = end - count
        # A pair ends with what is no carry, others begin with it.
        skipped = 0
        if not self.is_pair:
            skipped = len(graph.outputs) - count
        if start < 0 or len(graph.outputs) < count:
            return None
        carry = graph.inputs[start:end]
        before = graph.inputs[:start]
        behind = graph.inputs[end:]
        graph.inputs = carry + before + behind
        last = skipped + count
        graph.outputs = graph.outputs[skipped:last]
        types = []
        for value in graph.outputs:
            aval = graph.avals[value]
            types.append(strong_type(aval))
        tree = carried.merged(types)
        returned = SplitTree(tree)
        return Program(
            step=graph,
            names=(self.name,),
            carried=(carried,),
            returned=(returned,),
        )

    @functools.cached_property
    def _results(self) -> Graph:
        return self._graph(self.jaxprs[0])

    def _graph(self, jaxpr: Jaxpr) -> Graph:
        return Graph(jaxpr, len(tree_util.tree_leaves(self.inputs)))

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
        first_leaves = dict(zip(graph.inputs, first))
        # The record knows Python numbers by name.
        names = {}
        for value, path in zip(graph.inputs, self.carried.key_paths):
            keys = (self.name, *path)
            names[value] = last_name(keys)

        def beyond(value: int) -> Why:
            if value not in first_leaves:
                return beyond_graph(value)
            return Why(of_leaf(first_leaves[value], names.get(value, "")))

        # A loop takes weak leaves for strong ones.
        for drift in find(program, beyond):
            if drift.kind in ("dtype", "shape"):
                yield drift

    @property
    def result_types(self) -> list[Aval]:
        """The abstract values of its results."""
        graph = self._results
        types = []
        for output in graph.outputs:
            types.append(graph.avals[output])
        return types

    def lines_of_result(self, number: int, kind: str) -> tuple[Why, str]:
        """Returns the lines behind a result's type, and how it is returned unchanged."""
        graph = self._results
        output = graph.outputs[number]
        if output in graph.inputs:
            arguments = tree_util.tree_leaves(self.inputs)
            place = graph.inputs.index(output)
            return of_value(arguments[place]), "as it was given"
        aval = graph.avals[output]
        if output not in graph.constants:
            matches = Has(kind, getattr(aval, kind, None))
            lines = why(graph, output, matches)
            # Without an origin, a function inside returns it, and nothing promotes it.
            if lines.origin is None:
                lines = Why(lines.cause)
            return lines, ""
        lines = Why()
        passed_on = ""
        has_value = graph.array(output) is not None
        if not (has_value and is_weak(aval)):
            lines = lines_beyond(graph)(output)
            passed_on = "closed over"
        if lines.origin is None and self.code:
            # The line that returns it can be changed as well as the one that made it.
            line = origin_of_code(self.code)
            lines = Why(line, is_earlier=True)
        return lines, passed_on


def difference(before: Leaf, after: Leaf) -> Literal["dtype", "shape"] | None:
    """Returns what differs between two leaves, as loops and branches see it."""
    if getattr(before, "dtype", None) != getattr(after, "dtype", None):
        return "dtype"
    if np.shape(before) != np.shape(after):
        return "shape"
    return None
