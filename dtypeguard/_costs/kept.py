"""The bytes that a program keeps for the backward pass of a gradient."""

import math
from collections.abc import Iterator

from .._lines.equations import is_transposed
from .._program.graph import Graph
from .work import equations


def bytes_kept(graph: Graph) -> float:
    """The bytes of what the forward pass makes and the backward pass uses.

    Inputs and constants are there anyway, and what `jax.checkpoint` computes again is not
    kept. XLA may compute some of it again as well, and then keeps less.
    """
    kept: dict[int, float] = {}
    for equation, _ in equations(graph):
        if is_transposed(equation.stack):
            for value in equation.inputs:
                for source, size in _made_before(graph, value):
                    kept[source] = max(size, kept.get(source, 0.0))
    return sum(kept.values())


def _made_before(graph: Graph, value: int) -> Iterator[tuple[int, float]]:
    """What the forward pass made that a value is, and the bytes of it for all turns."""
    waiting, seen = [(value, 0.0)], set[int]()
    while waiting:
        value, size = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        aval = graph.avals[value]
        dtype = getattr(aval, "dtype", None)
        size = max(
            size, math.prod(getattr(aval, "shape", ())) * getattr(dtype, "itemsize", 0)
        )
        equation = graph.made_by.get(value)
        if equation is None:
            waiting += [(each, size) for each in graph.same.get(value, ())]
        elif not is_transposed(equation.stack):
            yield value, size
