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
# How many lines are wide together.
_MOST_TOGETHER = 64
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


def fix_of(
    runs: Runs,
    bound: float,
    is_asked: bool,
    order: Sequence[int],
    candidates: Sequence[int],
) -> WideRun:
    """Returns the cheapest line that is enough; else lines each of which is needed.

    If none are enough and no tolerance was asked for, what leaves half is of use.

    Args:
        runs: of the program.
        bound: the error that is small enough.
        is_asked: whether the user asked for this error.
        order: lines, the most important ones first.
        candidates: those that may be enough by themselves.
    """
    if runs.total <= bound:
        return runs.nothing
    alone: dict[int, WideRun] = {}
    for number in candidates:
        run = _better_run(runs, bound, [number])
        is_of_inputs = runs.program.lines[number].origin is None
        # To keep inputs wide is no more than to compute all so.
        if is_asked or not is_of_inputs or run.price <= _DEAR:
            alone[number] = run
    if not alone:
        return runs.nothing
    enough = [run for run in alone.values() if run.error <= bound]
    cheapest = min(enough, key=_price_of, default=None)
    if cheapest is not None and cheapest.price <= _DEAR:
        return cheapest

    def rank(number: int) -> tuple[bool, float]:
        if number not in alone:
            return False, 1.0
        # What makes most products wide comes last, and is dropped first.
        return alone[number].price > _DEAR, alone[number].left

    def error(lines: Sequence[int]) -> float:
        return _better_run(runs, bound, lines).error

    ranked = [n for n in order if n in alone or n not in candidates]
    ranked.sort(key=rank)
    lines = smallest(ranked[:_MOST_TOGETHER], error, bound)
    together = _better_run(runs, bound, lines)
    if cheapest is not None and together.price > _DEAR:
        return cheapest
    # If no lines reach what was asked for, these come closest.
    if is_asked or together.error <= bound:
        return together
    tried = [*alone.values(), together]
    helpful = [run for run in tried if run.error <= _HALF**0.5 * runs.total]
    return min(helpful, key=_few_lines_first, default=runs.nothing)


def _better_run(runs: Runs, bound: float, lines: Sequence[int]) -> WideRun:
    """Returns the better run with some lines wide, which stay wide or are cast back."""
    keeping = runs.with_wide(lines, keeps=True)
    # Inputs are not cast back.
    if any(runs.program.lines[number].origin is None for number in lines):
        return keeping
    if keeping.error <= bound:
        # What makes no product wide costs nothing.
        if not keeping.price:
            return keeping
        casting = runs.with_wide(lines, keeps=False)
        is_better = casting.error <= bound and casting.price < keeping.price
    else:
        casting = runs.with_wide(lines, keeps=False)
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
