"""Walks back from a traced value through what only moves its numbers, or makes them whole.

The equations are those of the trace so far, as `provenance.py` reads them.
"""

from collections.abc import Iterator, Sequence

from .._leaves.types import Leaf
from .._program.graph import Graph
from .._program.jaxprs import SHAPES
from .._source.origin import Why
from .provenance import of_value, traced_value
from .why import line_of, lines_beyond

# They pick numbers out of an operand, and compute none: the others say where.
_MOVES = SHAPES | {"dynamic_slice", "gather"}
_WHOLE = "floor", "ceil", "round"
# What stands between a line that makes numbers whole and their use as an index.
_BETWEEN = "clamp", "max", "min", "rem", "add", "sub", "mul", "select_n"


def lines_of_equation(value: Leaf) -> Why:
    """Returns the line that computes a traced value, and of `zeros_like(b)` that of `b`."""
    traced = traced_value(value)
    if traced is None:
        return Why()
    graph, place = traced
    node = graph.made_by.get(place)
    cause = None
    if node is not None and graph.constants.keys() >= set(graph.sources(place)):
        cause = of_value(value).cause
    return Why(line_of(node), cause)


def lines_of_index(value: Leaf) -> Why:
    """Returns the lines that made the floats of an index, if they are only passed on.

    That is where they were made whole, by `floor` for example, or where the array was made
    from which a program picks them.
    """
    traced = traced_value(value)
    if traced is None:
        return Why()
    graph, place = traced
    for source in _values_behind(graph, place, _BETWEEN):
        node = graph.made_by.get(source)
        if node is not None and node.name in _WHOLE:
            return Why(line_of(node))
    # Moves alone are a chain.
    *_, source = _values_behind(graph, place)
    if source in graph.made_by:
        return Why()
    return lines_beyond(graph)(source)


def _values_behind(
    graph: Graph, start: int, primitives: Sequence[str] = ()
) -> Iterator[int]:
    """Yields a value and its sources, through moves and other primitives."""

    def sources(value: int) -> Sequence[int]:
        operands = graph.sources(value)
        node = graph.made_by.get(value)
        if node is None:
            # It crosses the boundary of a call, and of no loop or branch.
            if len(operands) != 1:
                return ()
            return operands
        if node.name in _MOVES:
            return operands[:1]
        if node.name in primitives:
            return operands
        return ()

    return graph.behind([start], sources)
