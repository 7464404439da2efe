"""The functions that JAX traces for its control flow, as programs to be asked for lines."""

import itertools
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Literal, NamedTuple

import numpy as np
from jax import tree_util

from .._carry.places import Names
from .._carry.split import SplitTree
from .._leaves.dtypes import is_weak
from .._leaves.key_path import TreeName
from .._leaves.types import Aval, Jaxpr, Leaf, PyTree, Step
from .._program.graph import Graph
from .._program.trace import Program, strong_type
from .._source.inert import written_code
from .._source.origin import Why, origin_of_return
from .drift import Drift, find
from .provenance import of_leaf, of_value
from .why import Has, why


class Body(NamedTuple):
    """A function that JAX traces: the body of a loop, its condition, a branch, a loss."""

    function: Step  # as JAX was given it
    inputs: tuple[PyTree, ...]  # its arguments, or their types
    carry: int | None = None  # the position of the argument that comes back
    is_pair: bool = False  # whether it returns a pair, of which only the first item counts
    jaxprs: Sequence[Jaxpr] = ()  # those that may be its own, the likeliest first

    @property
    def code(self) -> CodeType | None:
        """The code of the function, inside of partial ones and of wrappers."""
        return written_code(self.function)

    @property
    def name(self) -> str:
        """Its name for the carry."""
        return Names(self.function).at(self.carry or 0)

    @property
    def carried(self) -> SplitTree:
        """The types of the carry."""
        return SplitTree(tree_util.tree_map(strong_type, self.inputs[self.carry or 0]))

    def program(self, jaxpr: Jaxpr) -> Program | None:
        """A jaxpr as a program whose carry comes first; None if it is not the function's.

        A body has the index of a `fori_loop` before its carry, and the slices and results
        of a `scan` behind it.
        """
        graph = Graph(jaxpr, len(tree_util.tree_leaves(self.inputs)))
        if self.carry is None:
            return Program(None, graph)
        carried = self.carried
        count = len(carried.arrays)
        behind = len(tree_util.tree_leaves(self.inputs[self.carry + 1 :]))
        start = len(graph.inputs) - behind - count
        skipped = 0 if self.is_pair else len(graph.outputs) - count
        if start < 0 or skipped < 0 or len(graph.outputs) < count:
            return None
        carry = graph.inputs[start : start + count]
        graph.inputs = carry + [value for value in graph.inputs if value not in carry]
        graph.outputs = graph.outputs[skipped : skipped + count]
        types = [strong_type(graph.avals[value]) for value in graph.outputs]
        returned = SplitTree(carried.merged(types))
        return Program(None, graph, (self.name,), (carried,), (returned,))

    def results(self) -> "Results | None":
        """What it returns, to be asked for lines; None if its jaxpr is not known."""
        jaxpr = next(iter(self.jaxprs), None)
        program = None if jaxpr is None else self.program(jaxpr)
        return Results(self, program.step) if program else None

    def drifts(self, first: Sequence[Leaf]) -> Iterator[Iterator[Drift]]:
        """What drifts, by each jaxpr that may be the body's, whose inputs begin so."""
        root = TreeName(self.name)
        names = [str((root, *path)[-1]) for path in self.carried.key_paths]
        pairs = [*itertools.zip_longest(first, names[: len(first)], fillvalue="")]
        begun = lambda n: Why(of_leaf(*pairs[n])) if n < len(pairs) else Why()
        for program in filter(None, map(self.program, self.jaxprs)):
            found = find(program, begun)
            yield (drift for drift in found if drift.kind in ("dtype", "shape"))


class Results(NamedTuple):
    """The results of a function that JAX traced."""

    body: Body
    graph: Graph

    def aval(self, number: int) -> Aval:
        """The abstract value of a result."""
        return self.graph.avals[self.graph.outputs[number]]

    def lines(self, number: int, kind: str = "dtype") -> tuple[Why, str]:
        """The lines behind the type of a result, and how what was there is returned."""
        graph, output = self.graph, self.graph.outputs[number]
        if output in graph.inputs:
            given = tree_util.tree_leaves(self.body.inputs)[graph.inputs.index(output)]
            return of_value(given), "as it was given"
        is_constant = output in graph.constants
        is_number = output in graph.values and is_weak(graph.avals[output])
        matches = Has(kind, getattr(self.aval(number), kind, None))
        lines = Why() if is_number else why(graph, output, matches)
        if is_constant and lines.origin is None and self.body.code:
            # What made it is not known, and the line that returns it can be changed too.
            lines = Why(origin_of_return(self.body.code), is_earlier=True)
        elif lines.origin is None:  # a function inside returns it, and nothing promotes it
            lines = Why(lines.cause)
        is_closed_over = is_constant and not is_number
        return lines, "closed over" if is_closed_over else ""


def difference(before: Leaf, after: Leaf) -> Literal["dtype", "shape"] | None:
    """What differs between two leaves, as loops and branches see it; None if nothing."""
    if getattr(before, "dtype", None) != getattr(after, "dtype", None):
        return "dtype"
    return "shape" if np.shape(before) != np.shape(after) else None
