"""Where the values of a program stop being finite: from what a run notes of results."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from .._leaves.types import Leaf
from .._program.graph import Graph
from .._program.jaxprs import Arrays, Stack
from . import plans
from .arrays import numpy_for
from .measure import Measures
from .primitives import Noted, is_inexact
from .probes import DECISION, Probes

# The number of an equation, and which of its results.
_ResultKey = tuple[int, str]
_Counts = Counter[_ResultKey]
_ResultKeys = Collection[_ResultKey]


class Birth(NamedTuple):
    """What makes a value that is not finite.

    Attributes:
        number: of the equation; of an input its place, counted from the last one.
        stack: the equation with those around it; () for an input.
    """

    number: int
    stack: Stack


def not_finite(measures: Measures) -> tuple[Birth | None, Birth | None]:
    """Returns what makes outputs not finite first, as written and in wide types.

    It is an equation whose result is not finite, though its operands are, and which leads
    to such an output. What is infinite because an input or a constant is, such as a mask,
    counts as finite.
    """
    program = measures.program
    decisions = measures.given
    written, births = _counts(measures, plans.written(program), decisions)
    wide, wide_births = _counts(measures, plans.wide(program), decisions)
    lost = (written - wide).keys()
    graph = Graph(program.block)
    # What an infinite input, rounded or not, leads to is born of nothing.
    born = lost & births.keys()
    birth = _first_birth(graph, lost, born) or _first_birth(graph, lost, lost)
    nan_inputs = []
    for place, array in enumerate(measures.arrays):
        if not is_inexact(array):
            continue
        # Infinity may be a mask, but no program means NaN.
        if np.isnan(array).any():
            nan_inputs.append(place)
    wide_birth = _first_birth(graph, wide, wide_births, nan_inputs)
    return birth, wide_birth


def _first_birth(
    graph: Graph, bad: _ResultKeys, born: _ResultKeys, nan_inputs: Collection[int] = ()
) -> Birth | None:
    """Returns the first birth from which bad values alone lead to an output."""
    keys = {}
    for value, equation in graph.made_by.items():
        place = str(value - equation.first)
        keys[value] = (equation.number, place)

    def sources(value: int) -> Sequence[int]:
        # What is selected away is followed no further. Integers are finite in any dtype.
        if value in keys and keys[value] not in bad:
            return ()
        return graph.sources(value)

    stacks = {}
    for value in graph.behind(graph.outputs, sources):
        if value in nan_inputs:
            number = value - len(graph.inputs)
            stacks[number] = ()
        elif keys.get(value) in born:
            equation = graph.made_by[value]
            stacks[equation.number] = equation.stack
    if not stacks:
        return None
    number, stack = min(stacks.items())
    return Birth(number, stack)


def count_births(measures: Measures, arrays: Arrays) -> int:
    """Returns how often wide types make a value that is not finite of values that are."""
    plan = plans.wide(measures.program)
    no_decisions = Noted()
    _, births = _counts(measures, plan, no_decisions, arrays)
    return births.total()


def _counts(
    measures: Measures,
    plan: plans.WidthPlan,
    followed: Noted,
    arrays: Arrays | None = None,
) -> tuple[_Counts, _Counts]:
    """Returns how many elements of results are not finite, and how often that is new.

    Over all turns of loops, of a run by a plan, for the results of which any are.
    """
    noted = Noted()
    probes = Probes(noted, _note, followed)
    measures.run(plan, probes, arrays=arrays)
    counts = Counter()
    births = Counter()
    for key, figures in noted.items():
        # How often a loop turns is no result.
        if key[1] == DECISION:
            continue
        turns = np.reshape(figures, (-1, 2))
        count, born = turns.sum(axis=0)
        if count:
            counts[key] = count
        if born:
            births[key] = born
    return counts, births


def _note(array: Leaf, operands: Arrays) -> Leaf | None:
    """Returns how many elements are not finite, and whether that is new."""
    if not is_inexact(array):
        return None
    numpy = numpy_for(array)
    count = numpy.sum(~numpy.isfinite(array))
    is_new = count > 0
    # A number that is not one may come of infinity alone, which makes it new.
    is_new_nan = numpy.isnan(array).any()
    for operand in operands:
        if is_inexact(operand):
            is_new &= numpy.isfinite(operand).all()
            is_new_nan &= ~numpy.isnan(operand).any()
    is_born = is_new | is_new_nan
    return numpy.stack([count, is_born.astype(count.dtype)])
