"""The functions that JAX traces for its control flow, as programs to be asked for lines."""

import dataclasses
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Literal, NamedTuple

import numpy as np
from jax import tree_util

from .._carry.places import Names
from .._carry.split import SplitTree
from .._leaves.dtypes import is_weak
from .._leaves.groups import parts
from .._leaves.types import Aval, Jaxpr, Leaf, PyTree, Step
from .._program.graph import Graph
from .._program.trace import Program, strong_type
from .._source.inert import written_code
from .._source.origin import Origin, Why
from .drift import Drift, find
from .provenance import of_leaf
from .why import Ends, Has, ProgramLines, why


class Body(NamedTuple):
    """A function that JAX traces: the body of a loop, its condition, a branch, a loss.

    Attributes:
        function: as JAX was given it.
        inputs: its arguments, or their types.
        carry: the position of the argument that comes back; None if none does.
        is_pair: whether it returns a pair, of which only the first item counts.
        jaxprs: those that may be its own, the likeliest first.
    """

    function: Step
    inputs: tuple[PyTree, ...]
    carry: int | None = None
    is_pair: bool = False
    jaxprs: Sequence[Jaxpr] = ()

    @property
    def code(self) -> CodeType | None:
        """The code of the function, inside of partial ones and of wrappers."""
        return written_code(self.function)

    @property
    def name(self) -> str:
        """Its name for the carry."""
        return Names.of(self.function).at(self.carry or 0)

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
        """What drifts, by each jaxpr that may be the body's.

        Args:
            first: what the inputs of the program are at first.
        """
        begun = [self.name + path for path in self.carried.paths]
        names = [parts(path)[-1] for path in begun]

        def given(number: int) -> Origin | None:
            if number >= len(first):
                return None
            name = names[number] if number < len(names) else ""
            return of_leaf(first[number], name)

        for program in filter(None, map(self.program, self.jaxprs)):
            found = find(program, ProgramLines(program, begun=given))
            begins = lambda drift: given(begun.index(drift.path))
            yield (
                dataclasses.replace(drift, begun=begins(drift))
                for drift in found
                if drift.kind in ("dtype", "shape")
            )


class Results(NamedTuple):
    """The results of a function that JAX traced."""

    body: Body
    graph: Graph

    def aval(self, number: int) -> Aval:
        """The abstract value of a result."""
        return self.graph.avals[self.graph.outputs[number]]

    def of(self, number: int, kind: str = "dtype") -> Why:
        """The lines that gave a result its dtype or its shape."""
        matches = Has(kind, getattr(self.aval(number), kind, None))
        every_input = (1 << len(self.graph.inputs)) - 1
        return why(self.graph, self.graph.outputs[number], matches, every_input, Ends())

    def unchanged(self, number: int) -> tuple[bool, bool, Leaf | None]:
        """What is returned unchanged as a result.

        Returns:
            Whether that is an argument, whether it is a constant or closed over, and the
            value; None where it is neither, or where that is not known.
        """
        output, inputs = self.graph.outputs[number], self.graph.inputs
        if output in inputs:
            leaves = tree_util.tree_leaves(self.body.inputs)
            return True, False, leaves[inputs.index(output)]
        value = self.graph.values.get(output)
        is_number = value is not None and is_weak(self.graph.avals[output])
        value = np.asarray(value).item() if is_number else value
        return False, output in self.graph.constants, value


def difference(before: Leaf, after: Leaf) -> Literal["dtype", "shape"] | None:
    """What differs between two leaves, as loops and branches see it; None if nothing."""
    if getattr(before, "dtype", None) != getattr(after, "dtype", None):
        return "dtype"
    return "shape" if np.shape(before) != np.shape(after) else None
