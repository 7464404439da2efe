"""The search for a fix: few lines that are enough where they compute wider."""

import math
from collections.abc import Callable, Sequence

from .runs import Runs, WideRun

# The error that is small enough where that as written is infinite.
_SMALL = 0.1
# How much of the squared error the lines of the fix may leave; if none leave so little,
# those that leave half are of use as well.
_LEFT = 0.1
_HALF = 0.5
# How many lines are wide together; how many runs are made.
_MOST_TOGETHER = 64
_MOST_RUNS = 96
# From this share of the products on it is no fix to make them wide, if there is another.
_DEAR = 0.5


def allowed_error(runs: Runs, tolerance: float | None) -> float:
    """Returns the error that is small enough."""
    if tolerance is not None:
        return tolerance
    # Shares are of the squared error.
    if math.isfinite(runs.total):
        return _LEFT**0.5 * runs.total
    return _SMALL


class FixSearch:
    """Looks for lines that are enough where they are wide.

    Args:
        runs: of the program.
        bound: the error that is small enough.
        is_asked: whether the user asked for this error.
    """

    def __init__(self, runs: Runs, bound: float, is_asked: bool):
        self._runs = runs
        self._bound = bound
        self._is_asked = is_asked
        # The same runs serve one search after another, for each level of a device's
        # products.
        self._most_runs = runs.count + _MOST_RUNS

    def fix(self, order: Sequence[int], candidates: Sequence[int]) -> WideRun:
        """Returns the cheapest line that is enough; else lines each of which is needed.

        If none are enough and no tolerance was asked for, what leaves half is of use.

        Args:
            order: lines, the most important ones first.
            candidates: those that may be enough by themselves.
        """
        runs = self._runs
        alone = {number: self._better_run([number]) for number in candidates}
        dear = {number for number, run in alone.items() if run.price > _DEAR}
        if not self._is_asked:
            # To keep inputs wide is no more than to compute all so.
            inputs = {n for n in dear if runs.program.lines[n].origin is None}
            order = [number for number in order if number not in inputs]
            alone = {n: run for n, run in alone.items() if n not in inputs}
        if not alone or runs.total <= self._bound:
            return runs.nothing
        enough = [run for run in alone.values() if self._is_enough(run)]
        enough.sort(key=_price_of)
        if enough and enough[0].lines[0] not in dear:
            return enough[0]

        def rank(number: int) -> tuple[bool, float]:
            # What makes most products wide comes last, and is dropped first.
            remaining = alone[number].left if number in alone else 1.0
            return number in dear, remaining

        ranked = sorted(order, key=rank)[:_MOST_TOGETHER]
        together = self._better_run(smallest(ranked, self._error, self._bound))
        if self._is_enough(together):
            return enough[0] if enough and together.price > _DEAR else together
        if self._is_asked:  # which no lines reach
            return together
        return self._best_half([*alone.values(), together])

    def _best_half(self, tried: Sequence[WideRun]) -> WideRun:
        """Returns the run with few lines that leaves half of the squared error."""
        helpful = [x for x in tried if x.error <= _HALF**0.5 * self._runs.total]
        return min(helpful, key=_few_lines_first, default=self._runs.nothing)

    def _is_enough(self, run: WideRun) -> bool:
        return run.error <= self._bound

    def _error(self, lines: Sequence[int]) -> float:
        # Lines that can no longer be run count as not enough, which ends the search.
        if self._runs.count >= self._most_runs:
            return math.inf
        return self._better_run(lines).error

    def _better_run(self, lines: Sequence[int]) -> WideRun:
        """Returns the better run with some lines wide, which stay wide or are cast back."""
        runs = self._runs
        keeping = runs.with_wide(lines, keeps=True)
        # Inputs are not cast back, and what makes no product wide costs nothing.
        if any(runs.program.lines[number].origin is None for number in lines):
            return keeping
        if self._is_enough(keeping) and not keeping.price:
            return keeping
        casting = runs.with_wide(lines, keeps=False)
        if self._is_enough(keeping):
            is_better = self._is_enough(casting) and casting.price < keeping.price
        else:
            is_better = casting.error < keeping.error
        return casting if is_better else keeping


def _price_of(run: WideRun) -> float:
    return run.price


def _few_lines_first(run: WideRun) -> tuple[float, int, float]:
    # What leaves nearly the same is as good.
    return round(4 * run.left), len(run.lines), run.left


def smallest(
    ranked: Sequence[int], error: Callable[[Sequence[int]], float], bound: float
) -> list[int]:
    """Returns the first ranked items that are enough together, without the needless ones.

    They are 1, 2, 4, 8 and so on: all of them, if these are not enough.
    """
    count = 1
    # Doubling overshoots by less than twice, in few runs; the loop below takes back what is
    # too much.
    while count < len(ranked) and error(ranked[:count]) > bound:
        count *= 2
    needed = list(ranked[:count])
    if error(needed) > bound:
        return needed
    # From the end: the items of least worth are the most likely to be needless.
    for item in reversed(ranked[:count]):
        fewer = [candidate for candidate in needed if candidate != item]
        # Dropping an item may have made another one necessary, so each is tried anew.
        if fewer and error(fewer) <= bound:
            needed = fewer
    return needed
