"""Where the values of a program stop being finite: from what a run notes of results."""

import dataclasses
from collections.abc import Callable, Collection, Sequence

import jax.numpy as jnp
import numpy as np

from .._leaves.types import Leaf
from .._program.jaxprs import Stack
from . import plans
from .measure import Measures
from .nodes import Noted
from .plans import Propagation
from .primitives import is_inexact
from .probes import Probes
from .program import NumericProgram

# The number of an equation, and which of its results.
_ResultKey = tuple[int, int]
# By a result: how many of its elements are not finite, and how often that is new.
_Counts = dict[_ResultKey, np.ndarray]
_IsTrue = Callable[[_ResultKey], bool]
_NO_COUNTS = np.zeros(2, int)


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
    written = _counts_of_not_finite(measures, plans.written(program))
    wide = _counts_of_not_finite(measures, plans.rounding(program, ()))

    def is_lost(key: _ResultKey) -> bool:
        return written.get(key, _NO_COUNTS)[0] > wide.get(key, _NO_COUNTS)[0]

    def is_lost_here(key: _ResultKey) -> bool:
        return is_lost(key) and written[key][1] > 0

    def is_bad(key: _ResultKey) -> bool:
        return wide.get(key, _NO_COUNTS)[0] > 0

    def is_born(key: _ResultKey) -> bool:
        return wide.get(key, _NO_COUNTS)[1] > 0

    birth = _Births(program, is_lost, is_lost_here).first()
    if birth is None:
        # What an infinite input, rounded or not, leads to is born of nothing.
        birth = _Births(program, is_lost, is_lost).first()
    nan_inputs: list[int] = []
    for place, array in enumerate(measures.arrays):
        # Infinity may be a mask, but no program means NaN.
        if is_inexact(array) and np.isnan(array).any():
            nan_inputs.append(place)
    return birth, _Births(program, is_bad, is_born, nan_inputs).first()


class _Births(Propagation[Birth | None]):
    """Follows the first birth from which bad values alone lead on."""

    def __init__(
        self,
        program: NumericProgram,
        is_bad: _IsTrue,
        is_born: _IsTrue,
        nan_inputs: Collection[int] = (),
    ):
        super().__init__(program)
        self._is_bad = is_bad
        self._is_born = is_born
        self._nan_inputs = nan_inputs

    def first(self) -> Birth | None:
        """Returns the first birth that leads to an output."""
        avals = self.program.jaxpr.in_avals
        arguments: list[Birth | None] = []
        for place in range(len(avals)):
            is_birth = place in self._nan_inputs
            arguments.append(Birth(place - len(avals), ()) if is_birth else None)
        outputs = self.block(self.program.block, arguments)
        avals = self.program.jaxpr.out_avals
        # Integers are finite in any dtype.
        floats = [birth for birth, aval in zip(outputs, avals) if is_inexact(aval)]
        return self.joined(floats, 0)

    def constant(self, array, aval):
        return None

    def joined(self, values, attempt):
        return min((birth for birth in values if birth is not None), default=None)

    def computed(self, node, values):
        results: list[Birth | None] = []
        for place in range(len(node.eqn.outvars)):
            key = (node.number, place)
            births: list[Birth | None] = []
            is_born = self._is_born(key)
            if is_born:
                births.append(Birth(node.number, node.stack))
            # What is selected away is followed no further.
            if is_born or self._is_bad(key):
                births.extend(values)
            results.append(self.joined(births, 0))
        return results

    # The equations inside of a solver are those of its solution alone.
    opaque = solve = computed


def count_births(measures: Measures, arrays: Sequence[Leaf]) -> int:
    """Returns how often wide types make a value that is not finite of values that are."""
    counts: Noted = {}
    measures.run(plans.wide(measures.program), Probes(counts, _note), arrays=arrays)
    total = 0
    for figures in counts.values():
        total += int(np.sum(np.asarray(figures).reshape(-1, 2)[:, 1]))
    return total


def _counts_of_not_finite(measures: Measures, plan: plans.WidthPlan) -> _Counts:
    """Returns the counts of a run by a plan."""
    counts: Noted = {}
    measures.run(plan, Probes(counts, _note, measures.given))
    return {key: np.asarray(x).reshape(-1, 2).sum(0) for key, x in counts.items()}


def _note(array: Leaf, operands: Sequence[Leaf]) -> Leaf | None:
    """Returns how many elements are not finite, and whether all operands are finite."""
    if not is_inexact(array):
        return None
    is_finite = jnp.isfinite(array)
    floats = [operand for operand in operands if is_inexact(operand)]
    # A number that is not one may come of infinity alone, which makes it new.
    has_nan = jnp.any(jnp.isnan(array))
    is_born = jnp.any(~is_finite)
    for operand in floats:
        has_nan &= ~jnp.any(jnp.isnan(operand))
        is_born &= jnp.all(jnp.isfinite(operand))
    return jnp.stack([jnp.sum(~is_finite), (has_nan | is_born).astype(int)])
