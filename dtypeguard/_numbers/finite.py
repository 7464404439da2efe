"""Where the values of a program stop being finite: from what a run notes of results."""

import functools
from collections.abc import Callable, Collection, Sequence

import jax.numpy as jnp
import numpy as np

from .._leaves.types import Leaf
from .._program.graph import Graph
from .._program.jaxprs import Stack
from . import plans
from .measure import Measures
from .nodes import Noted
from .primitives import is_inexact
from .probes import Probes

# What makes a value that is not finite: the number of the equation with those around it; of
# an input its place, counted from the last one, and no equation.
Birth = tuple[int, Stack]
_ValueKey = tuple[int | None, int]
_NO_COUNTS = np.zeros(2, int)


def not_finite(measures: Measures, graph: Graph) -> tuple[Birth | None, Birth | None]:
    """What makes outputs not finite first.

    It is an equation whose result is not finite, though its operands are, and which leads
    to such an output. What is infinite because an input or a constant is, such as a mask,
    counts as finite.

    Returns:
        What does as written and not in wide types, and what does in wide types.
    """
    program = measures.program
    numbers = {(*map(id, x.stack),): x.number for x in program.block.all_nodes()}
    written = _counts_of_not_finite(measures, plans.written(program))
    wide = _counts_of_not_finite(measures, plans.rounding(program, ()))
    arrays = zip(graph.inputs, measures.arrays)
    without = [value for value, x in arrays if is_inexact(x) and np.isnan(x).any()]
    places = dict[int, int]()  # of the first results of equations
    for value in sorted(graph.made_by):
        places.setdefault(id(graph.made_by[value]), value)

    def first(
        is_bad: Callable[[_ValueKey], bool],
        is_born: Callable[[_ValueKey], bool],
        inputs: Collection[int] = (),
    ) -> Birth | None:
        """The first birth from which bad values alone lead to an output."""
        waiting = [value for value in graph.outputs if is_inexact(graph.avals[value])]
        births, seen = dict[int, Stack](), set[int]()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in inputs:
                births[value - len(graph.inputs)] = ()
            equation = graph.made_by.get(value)
            if equation is None:
                waiting += graph.same.get(value, ())
                continue
            number = numbers.get((*map(id, equation.stack),))
            key = number, value - places[id(equation)]
            if number is not None and is_born(key):
                births[number] = equation.stack
            if is_born(key) or is_bad(key):  # what is selected away is followed no further
                waiting += equation.inputs
        return min(births.items(), default=None)

    is_lost = lambda key: written.get(key, _NO_COUNTS)[0] > wide.get(key, _NO_COUNTS)[0]
    born_as_written = lambda key: is_lost(key) and written[key][1] > 0
    # What an infinite input, rounded or not, leads to is born of nothing.
    lost = first(is_lost, born_as_written) or first(is_lost, is_lost)
    is_bad, is_born = (lambda key, n=n: wide.get(key, _NO_COUNTS)[n] > 0 for n in range(2))
    return lost, first(is_bad, is_born, without)


def count_births(measures: Measures, arrays: Sequence[Leaf]) -> int:
    """Returns how often wide types make a value that is not finite of values that are."""
    counts: Noted = {}
    measures.run(plans.wide(measures.program), Probes(counts, _note), arrays=arrays)
    births = [np.asarray(figures).reshape(-1, 2)[:, 1] for figures in counts.values()]
    return sum(int(np.sum(each)) for each in births)


def _counts_of_not_finite(
    measures: Measures, plan: plans.WidthPlan
) -> dict[_ValueKey, np.ndarray]:
    """How many elements of each value are not finite, and how often that is new."""
    counts: Noted = {}
    measures.run(plan, Probes(counts, _note, measures.given))
    return {key: np.asarray(x).reshape(-1, 2).sum(0) for key, x in counts.items()}


def _note(array: Leaf, operands: Sequence[Leaf]) -> Leaf | None:
    """How many elements are not finite, and whether those of the operands are."""
    if not is_inexact(array):
        return None

    def is_new(is_bad: Callable[[Leaf], Leaf]) -> Leaf:
        before = [jnp.any(is_bad(x)) for x in operands if is_inexact(x)]
        return jnp.any(is_bad(array)) & ~functools.reduce(jnp.logical_or, before, np.False_)

    born = is_new(jnp.isnan) | is_new(lambda x: ~jnp.isfinite(x))
    return jnp.stack([jnp.sum(~jnp.isfinite(array)), born.astype(int)])
