"""Which outputs are an input with an update, and where rounding takes the update away."""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp

from .._leaves.types import Leaf
from .._numbers.primitives import is_inexact
from .._program.graph import Equation, Graph

_SAME = frozenset(["convert_element_type", "copy", "optimization_barrier", "select_n"])
_ADDS = frozenset(["add", "add_any", "sub"])


def unmoved(
    graph: Graph, arrays: Sequence[Leaf], written: Sequence[Leaf], exact: Sequence[Leaf]
) -> dict[int, float]:
    """The share of the elements of each update that do not move, by number of the output.

    An element does not that is the input again as written, and another number in wide
    types.
    """
    shares = dict[int, float]()
    for number, places in _all_updated(graph).items():
        new, true = written[number], exact[number]
        for place in places:
            moves = true != jnp.asarray(arrays[place], true.dtype)
            stays = moves & (new == jnp.asarray(arrays[place], new.dtype))
            share = float(jnp.sum(stays) / jnp.maximum(jnp.sum(moves), 1))
            shares[number] = max(share, shares.get(number, 0.0))
    return shares


def updated_inputs(graph: Graph) -> dict[int, int]:
    """The input to which each floating output adds, by the numbers of both."""
    return {number: places[0] for number, places in _all_updated(graph).items()}


def _all_updated(graph: Graph) -> dict[int, list[int]]:
    floats = [each for each in graph.outputs if is_inexact(graph.avals[each])]
    found = {n: [*_updated(graph, value)] for n, value in enumerate(floats)}
    return {number: places for number, places in found.items() if places}


def _updated(graph: Graph, output: int) -> Iterator[int]:
    """The inputs of its shape to which an output adds, once or in each turn of a loop."""
    shape = getattr(graph.avals[output], "shape", None)
    waiting, seen = [(output, False)], set[tuple[int, bool]]()
    while waiting:
        state = value, is_added = waiting.pop()
        if state in seen or getattr(graph.avals[value], "shape", None) != shape:
            continue
        seen.add(state)
        if value < len(graph.inputs) and is_added:
            yield value
        equation = graph.made_by.get(value)
        if equation is None:
            waiting += [(each, is_added) for each in graph.same.get(value, ())]
        else:
            adds = is_added or equation.primitive in _ADDS
            waiting += [(each, adds) for each in _carried(graph, equation)]


def _carried(graph: Graph, equation: Equation) -> Sequence[int]:
    """The operands of an equation that its result may be, but for what is added."""
    inputs = equation.inputs
    if equation.primitive == "sub":
        return inputs[:1]
    if equation.primitive == "mul":  # a decay by a number
        scalars = [not getattr(graph.avals[each], "shape", ()) for each in inputs]
        return [each for each, other in zip(inputs, scalars[::-1]) if other]
    return inputs if equation.primitive in _SAME | _ADDS else ()
