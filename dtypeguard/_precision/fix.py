"""The search for a fix: few lines that are enough where they compute wider."""

import math
from collections.abc import Callable, Iterable, Sequence

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
    order: Sequence[int],
    candidates: Sequence[int],
    level: str | None,
) -> WideRun:
    """Returns the cheapest line that is enough; else lines each of which is needed.

    If none are enough, what leaves half is of use.

    Args:
        runs: of the program.
        bound: the error that is small enough.
        order: lines, the most important ones first.
        candidates: those that may be enough by themselves.
        level: the precision of the products of wide lines, in audits of products.
    """

    def wide(lines: Iterable[int]) -> WideRun:
        run = runs.with_wide(lines, level)
        # What makes no product wide costs nothing.
        if not run.price or run.error > bound:
            return run
        casting = runs.with_wide(lines, level, keeps=False)
        if casting.error <= bound:
            return casting
        return run

    def merit(run: WideRun) -> tuple[int, float, int, float]:
        if run.error <= bound:
            is_dear = run.price > _DEAR
            return 0, is_dear, len(run.lines), run.price
        # What leaves nearly the same is as good.
        quarters = round(4 * run.remaining)
        return 1, quarters, len(run.lines), run.remaining

    nothing = runs.nothing._replace(level=level)
    alone = {number: wide([number]) for number in candidates}
    best = min([nothing, *alone.values()], key=merit)
    is_enough = best.error <= bound and best.price <= _DEAR
    if not candidates or is_enough:
        return best

    def error(lines: Sequence[int]) -> float:
        return wide(lines).error

    def rank(number: int) -> tuple[bool, float]:
        run = alone.get(number, nothing)
        # What makes most products wide comes last, and is dropped first.
        return run.price > _DEAR, run.remaining

    ranked = sorted(order, key=rank)[:_MOST_TOGETHER]
    lines = smallest(ranked, error, bound)
    together = wide(lines)
    best = min([*alone.values(), together], key=merit)
    is_of_use = best.error <= bound or best.remaining <= _HALF
    if is_of_use:
        return best
    return nothing


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
    for item in needed[::-1]:
        fewer = [candidate for candidate in needed if candidate != item]
        # Dropping an item may have made another one necessary, so each is tried anew.
        if fewer and error(fewer) <= bound:
            needed = fewer
    return needed
