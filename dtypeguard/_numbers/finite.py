"""Where the values of a program stop being finite: from what a run notes of results."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .._program.graph import Graph
from .._program.jaxprs import Arrays, Stack
from .._program.program import Node
from . import plans
from .arithmetic import Values, wide_form
from .arrays import numpy_for
from .measure import Measures
from .primitives import Noted, is_inexact
from .probes import DECISION, Probes

# How many elements of a result there are, by the number of the equation and its place.
_Counts = Counter[tuple[int, str]]


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
    lost = written - wide
    graph = Graph(program.block)
    born = lost & births
    birth = _first_birth(graph, lost, born)
    # What an infinite input, rounded or not, leads to is born of nothing.
    if birth is None:
        birth = _first_birth(graph, lost, lost)
    wide_birth = _first_birth(graph, wide, wide_births, measures.arrays)
    return birth, wide_birth


def _first_birth(
    graph: Graph, bad: _Counts, born: _Counts, inputs: Arrays = ()
) -> Birth | None:
    """Returns the first birth from which bad values alone lead to an output."""
    keys = {}
    for value, node in graph.made_by.items():
        place = node.eqn.outvars.index(graph.variables[value])
        keys[value] = (node.number, str(place))

    def sources(value: int) -> Sequence[int]:
        # What is selected away is followed no further. Integers are finite in any dtype.
        if value in keys and not bad[keys[value]]:
            return ()
        return graph.sources(value)

    births = []
    for value in graph.behind(graph.outputs, sources):
        if value in keys and born[keys[value]]:
            node = graph.made_by[value]
            births.append(Birth(node.number, node.stack))
        elif value < len(inputs):
            array = inputs[value]
            # Infinity may be a mask, but no program means NaN.
            if is_inexact(array) and np.isnan(array).any():
                births.append(Birth(value - len(inputs), ()))
    return min(births, default=None)


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
    probes = Probes(_note, followed)
    measures.run(plan, probes, arrays=arrays)
    counts = Counter()
    births = Counter()
    for key, figures in probes.noted.items():
        number, name = key
        # How often a loop turns is no result.
        if name == DECISION:
            continue
        turns = np.reshape(figures, (-1, 2))
        count, born = turns.sum(axis=0)
        counts[number, name] = int(count)
        births[number, name] = int(born)
    return counts, births


def _note(node: Node, operands: Values, results: Values) -> Noted:
    """Returns how many elements of each result are not finite, and whether that is new."""
    noted = Noted()
    for place, result in enumerate(map(wide_form, results)):
        if not is_inexact(result):
            continue
        numpy = numpy_for(result)
        are_lost = ~numpy.isfinite(result)
        count = numpy.sum(are_lost, dtype=np.int32)
        is_new = count > 0
        has_new_nan = numpy.isnan(result).any()
        # A constant that is rounded as written has made nothing yet.
        for operand in map(wide_form, operands):
            if is_inexact(operand):
                is_new &= numpy.isfinite(operand).all()
                # A number that is not one may come of infinity alone, which makes it new.
                has_new_nan &= ~numpy.isnan(operand).any()
        is_born = is_new | has_new_nan
        noted[node.number, str(place)] = numpy.stack([count, is_born.astype(np.int32)])
    return noted
