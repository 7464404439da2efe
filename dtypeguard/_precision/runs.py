"""Plain runs of a program with some lines wide, or with the loss scaled."""

import math
from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np

from .._costs.work import operations, repetitions
from .._leaves.types import Equation, Leaf
from .._numbers import plans
from .._numbers.formats import Formats
from .._numbers.measure import Measures
from .._numbers.plans import WIDE, WidthPlan
from .plain import PlainRuns
from .rows import ReportWords, Scaled, WideLines

# From this share of outputs on that are lost to 0, it is tried to scale the loss, by these
# powers of two.
_LEAST_LOST = 0.001
_LEFT_AT_MOST = 0.5
_POWERS = (-16, -12, -8, -4, 4, 8, 12, 16, 20, 24)


class Runs(PlainRuns):
    """A program as written, in wide types, and with some lines wide.

    Attributes:
        count: how many runs with lines wide were made.
        most_price: the share of the products from which on it is no fix to make them wide.
    """

    most_price = 0.5

    def __init__(self, measures: Measures):
        super().__init__(measures)
        self.count = 0
        self._with_wide: dict[tuple[frozenset[int], bool], WideLines] = {}
        wide = plans.wide(self.program)
        self._work = self._widened_work(wide, is_any=True) or 1.0

    def with_wide(self, lines: Iterable[int], keeps: bool) -> WideLines:
        """The program with some lines wide.

        Of a line inside of a package, that is all that the user's line calls there, which
        is given wide arrays.
        """
        origins = [line.origin for line in self.program.lines]
        called = {n: x.users.place for n, x in enumerate(origins) if x and x.called_from}
        lines = [*lines]
        callers = {called[number] for number in lines if number in called}
        given_wide = frozenset(n for n, users in called.items() if users in callers)
        chosen = given_wide.union(lines)
        if (chosen, keeps) not in self._with_wide:
            made = self._with_lines(chosen, keeps)
            self.count += 1
            self._with_wide[chosen, keeps] = made
        return self._with_wide[chosen, keeps]

    def _with_lines(self, chosen: frozenset[int], keeps: bool) -> WideLines:
        plan = plans.wide_lines(self.program, chosen, keeps)
        error = self._mean(self._distances(self._made_with(plan)))
        price = self._widened_work(plan) / self._work
        return WideLines(error, self.left(error), price, plan)

    def _made_with(
        self, plan: WidthPlan, arrays: Sequence[Leaf] | None = None
    ) -> list[Leaf]:
        """The outputs of a plan; a gradient comes back in the dtype of its argument."""
        made = self._measures.run(plan, arrays=arrays, formats=self._formats_of_lines())
        triples = zip(made, self.written, self._are_gradients)
        return [x.astype(w.dtype) if g else x for x, w, g in triples]

    def holds(self, wide: WideLines, bound: float, has_tolerance: bool) -> bool:
        """Whether some lines are enough for other roundings of the inputs as well.

        They are by the median of three: the inputs, and two that differ by a rounding.
        """
        if wide.plan is None or not math.isfinite(self.total):
            return wide.error <= bound
        inside = [wide.error <= bound]
        for arrays, exact, total in self._elsewhere:
            error = self._mean(self._distances(self._made_with(wide.plan, arrays), exact))
            most = _LEFT_AT_MOST**0.5 * total
            most = min(most, bound) if has_tolerance else most
            inside.append(error <= most)
        return sum(inside) > 1

    @property
    def words(self) -> ReportWords:
        """How a report names what was run."""
        formats, unknown = self.program.formats, self.program.unknown
        setting = "" if formats.narrow is None else f"in {formats.narrow}"
        wide = str(formats.wide)
        so_far = ", as far as they were examined" * bool(unknown)
        nothing = f"the outputs are those of {wide}{so_far}."
        return ReportWords(setting, f"in {wide}", wide, f"those of {wide}", nothing)

    @property
    def nothing(self) -> WideLines:
        """The program with no line wide."""
        return WideLines(self.total, self.left(self.total), 0.0)

    def scaled(self) -> Scaled | None:
        """The loss scale that leaves the least error; None if none leaves half of it."""
        dtypes = self.program.backward
        short = sorted(str(x) for x in dtypes if jnp.finfo(x).maxexp < 127)
        if not short or (self.lost < _LEAST_LOST and math.isfinite(self.total)):
            return None
        plan = plans.chosen_wide(
            self.program, lambda node, has_wide: node.is_backward or has_wide
        )
        tried = []
        for power in _POWERS:
            made = self._measures.run(plan, scale=np.float32(2.0**power))
            triples = zip(made, self.written, self._are_gradients)
            made = [x if g else x.astype(w.dtype) for x, w, g in triples]
            tried.append((self._mean(self._distances(made)), power))
        least = min(tried)[0]
        error, power = min(
            (each for each in tried if each[0] <= 1.1 * least), key=lambda x: abs(x[1])
        )
        left = self.left(error)
        return Scaled(2.0**power, error, left, short[0]) if left < _LEFT_AT_MOST else None

    def _widened_work(self, plan: WidthPlan, is_any: bool = False) -> float:
        """The operations of the products that a plan makes wide, or of all of them."""
        return sum(
            operations(node.eqn) * repetitions(node.stack)
            for node in self.program.block.all_nodes()
            if plan.entries[node.number] == WIDE and (is_any or self._is_narrow(node.eqn))
        )

    def _formats_of_lines(self) -> Formats:
        """The dtypes in which lines are wide."""
        return self.program.formats

    def _is_narrow(self, eqn: Equation) -> bool:
        """Whether a product is computed wider where its line is wide."""
        dtypes = (var.aval.dtype for var in eqn.invars[:2])
        return any(map(self.program.formats.rounds, dtypes))
