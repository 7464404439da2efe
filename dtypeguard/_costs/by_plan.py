"""What a program by a plan costs: the share of wide products, and the bytes it keeps."""

import math
from collections.abc import Iterator

from .._leaves.types import DType
from .._lines.equations import Written
from .._program.graph import Graph
from .work import equations, operations, repetitions

# What `autocast` adds that computes nothing: its result is its first operand.
_SAME = "autocast_fan_out", "autocast_result"
_CASTS = "convert_element_type", "autocast_round"


def wide_share(graph: Graph, narrow: DType) -> float:
    """The share of the multiply-adds that are on operands wider than a dtype.

    An operand that is rounded first is narrow, though a CPU is given it in float32.
    """
    wide = total = 0.0
    for equation, _ in equations(graph):
        if count := operations(equation.stack[0]) * repetitions(equation.stack):
            sizes = (_rounded_itemsize(graph, value) for value in equation.inputs[:2])
            total += count
            wide += count * (max(sizes) > narrow.itemsize)
    return wide / total if total else 0.0


def _rounded_itemsize(graph: Graph, value: int) -> float:
    """The bytes of each number of a value, or of what it is a copy of."""
    made, size = graph.made_by.get(value), _itemsize(graph, value)
    if made is None or made.primitive != "convert_element_type":
        return size
    return min(size, _itemsize(graph, made.inputs[0]))


def bytes_kept(graph: Graph) -> float:
    """The bytes of what the forward pass makes and the backward pass uses.

    Inputs and constants are there anyway, and what `jax.checkpoint` computes again is not
    kept. Of a value that the backward pass only rounds, the rounded one is kept. XLA may
    compute some of it again as well, and then keeps less.
    """
    kept: dict[int, float] = {}
    for equation, results in equations(graph):
        if not Written(equation.stack).is_transposed or equation.primitive in _SAME:
            continue
        is_cast = equation.primitive in _CASTS
        rounded = _itemsize(graph, results[0]) if is_cast else math.inf
        for value in equation.inputs:
            for source, count, itemsize in _made_before(graph, value):
                size = count * min(itemsize, rounded)
                kept[source] = max(size, kept.get(source, 0.0))
    return sum(kept.values())


def _made_before(graph: Graph, value: int) -> Iterator[tuple[int, float, float]]:
    """What the forward pass made that a value is, how many numbers, and their bytes."""
    waiting, seen = [(value, 0.0)], set[int]()
    while waiting:
        value, count = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        count = max(count, math.prod(getattr(graph.avals[value], "shape", ())))
        equation = graph.made_by.get(value)
        if equation is None:
            waiting += [(each, count) for each in graph.same.get(value, ())]
        elif equation.primitive in _SAME:
            waiting.append((equation.inputs[0], count))
        elif not Written(equation.stack).is_transposed:
            yield value, count, _itemsize(graph, value)


def _itemsize(graph: Graph, value: int) -> float:
    dtype: DType = getattr(graph.avals[value], "dtype", None)
    return getattr(dtype, "itemsize", 0)
