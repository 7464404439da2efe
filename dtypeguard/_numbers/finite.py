"""Where the values of a program stop being finite: from what a run notes of results."""

import dataclasses
from collections.abc import Collection, Sequence

import jax.numpy as jnp
import numpy as np

from .._leaves.types import Leaf
from .._program.graph import Graph
from .._program.jaxprs import Stack
from . import plans
from .measure import Measures
from .nodes import Noted
from .primitives import is_inexact
from .probes import DECISION, Probes

# The number of an equation, and which of its results.
_ResultKey = tuple[int, str]
# By a result: how many of its elements are not finite, and how often that is new.
_Counts = dict[_ResultKey, np.ndarray]
_Results = set[_ResultKey]
_UNCOUNTED = np.zeros(2)


@dataclasses.dataclass(frozen=True, order=True)
class Birth:
    """What makes a value that is not finite.

    Attributes:
        number: of the equation; of an input its place, counted from the last one.
        stack: the equation with those around it; () for an input.
    """

    number: int
    stack: Stack = dataclasses.field(compare=False)


def not_finite(measures: Measures) -> tuple[Birth | None, Birth | None]:
    """Returns what makes outputs not finite first, as written and in wide types.

    It is an equation whose result is not finite, though its operands are, and which leads
    to such an output. What is infinite because an input or a constant is, such as a mask,
    counts as finite.
    """
    program = measures.program
    decisions = measures.given
    written = _counts(measures, plans.written(program), decisions)
    wide = _counts(measures, plans.wide(program), decisions)
    lost = _more_than(written, wide)
    bad = _more_than(wide, {})
    graph = Graph(program.block)
    # What an infinite input, rounded or not, leads to is born of nothing.
    birth = _first_birth(graph, lost, lost & _born(written))
    birth = birth or _first_birth(graph, lost, lost)
    nan_inputs: list[int] = []
    for place, array in enumerate(measures.arrays):
        # Infinity may be a mask, but no program means NaN.
        if is_inexact(array) and np.isnan(array).any():
            nan_inputs.append(place)
    return birth, _first_birth(graph, bad, _born(wide), nan_inputs)


def _more_than(counts: _Counts, baseline: _Counts) -> _Results:
    """Returns the results of which more elements are not finite than in another run."""
    results: _Results = set()
    for key, count in counts.items():
        if count[0] > baseline.get(key, _UNCOUNTED)[0]:
            results.add(key)
    return results


def _born(counts: _Counts) -> _Results:
    """Returns the results that are not finite, though what they are made of is."""
    return {key for key, (_, births) in counts.items() if births}


def _first_birth(
    graph: Graph, bad: _Results, born: _Results, nan_inputs: Collection[int] = ()
) -> Birth | None:
    """Returns the first birth from which bad values alone lead to an output."""

    def key_of(value: int) -> _ResultKey | None:
        equation = graph.made_by.get(value)
        if equation is None:
            return None
        place = value - equation.first
        return equation.number, str(place)

    def sources(value: int) -> Sequence[int]:
        key = key_of(value)
        if key is None or key in bad or key in born:
            return graph.sources(value)
        # What is selected away is followed no further.
        return ()

    # Integers are finite in any dtype.
    floats: list[int] = []
    for value in graph.outputs:
        if is_inexact(graph.avals[value]):
            floats.append(value)
    births: list[Birth] = []
    for value in graph.behind(floats, sources):
        if value in nan_inputs:
            births.append(Birth(value - len(graph.inputs), ()))
        elif key_of(value) in born:
            equation = graph.made_by[value]
            births.append(Birth(equation.number, equation.stack))
    return min(births, default=None)


def count_births(measures: Measures, arrays: Sequence[Leaf]) -> int:
    """Returns how often wide types make a value that is not finite of values that are."""
    plan = plans.wide(measures.program)
    counts = _counts(measures, plan, arrays=arrays)
    return sum(int(births) for _, births in counts.values())


def _counts(
    measures: Measures,
    plan: plans.WidthPlan,
    followed: Noted | None = None,
    arrays: Sequence[Leaf] | None = None,
) -> _Counts:
    """Returns the counts of a run by a plan, over all turns of loops."""
    noted: Noted = {}
    measures.run(plan, Probes(noted, _note, followed), arrays=arrays)
    counts: _Counts = {}
    for key, figures in noted.items():
        # How often a loop turns is no result.
        if key[1] != DECISION:
            turns = np.asarray(figures).reshape(-1, 2)
            counts[key] = turns.sum(axis=0)
    return counts


def _note(array: Leaf, operands: Sequence[Leaf]) -> Leaf | None:
    """Returns how many elements are not finite, and whether all operands are finite."""
    if not is_inexact(array):
        return None
    # A number that is not one may come of infinity alone, which makes it new.
    is_new_nan = jnp.any(jnp.isnan(array))
    count = jnp.sum(~jnp.isfinite(array))
    is_new = count > 0
    for operand in operands:
        if is_inexact(operand):
            is_new_nan &= ~jnp.any(jnp.isnan(operand))
            is_new &= jnp.all(jnp.isfinite(operand))
    births = is_new_nan | is_new
    return jnp.stack([count, births.astype(int)])
