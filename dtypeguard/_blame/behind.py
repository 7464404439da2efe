"""Walks back from a traced value through what only moves its numbers, or makes them whole.

The equations are those of the trace so far, as `provenance.py` reads them.
"""

from collections.abc import Iterator, Sequence

from .._leaves.types import Leaf
from .._program.graph import Graph
from .._program.jaxprs import SHAPES
from .._source.origin import Origin
from .provenance import traced_value
from .why import line_of, unwrapped

# They change a shape or pick numbers out of an operand, and compute none.
_MOVES = SHAPES | {"dynamic_slice", "gather"}
_WHOLE = "floor", "ceil", "round"
# What stands between a line that makes numbers whole and their use as an index.
_BETWEEN = "clamp", "max", "min", "rem", "add", "sub", "mul", "select_n"


def origin_of_equation(value: Leaf) -> Origin | None:
    """Returns the line that computes a traced value; None if no equation does."""
    traced = traced_value(unwrapped(value))
    if traced is None:
        return None
    graph, place = traced
    return line_of(graph.made_by.get(place))


def origin_of_whole_numbers(value: Leaf) -> Origin | None:
    """Returns the line that made the floats of an array whole, by `floor` for example."""
    traced = traced_value(unwrapped(value))
    if traced is None:
        return None
    graph, place = traced
    for source in _values_behind(graph, place):
        equation = graph.made_by.get(source)
        if equation is not None and equation.primitive in _WHOLE:
            return line_of(equation)
    return None


def _values_behind(graph: Graph, start: int) -> Iterator[int]:
    """Yields a value and its sources, through moves and what stands between."""

    def sources(value: int) -> Sequence[int]:
        equation = graph.made_by.get(value)
        if equation is None:
            predecessors = graph.same_as(value)
            # It crosses the boundary of a call, and of no loop or branch.
            return predecessors if len(predecessors) == 1 else ()
        if equation.primitive in _MOVES:
            return equation.inputs[:1]  # the others say where
        return equation.inputs if equation.primitive in _BETWEEN else ()

    return graph.behind([start], sources)
