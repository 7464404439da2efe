"""The search for a fix: few lines that are enough where they compute wider."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from .runs import Runs, WideRun

_Item = TypeVar("_Item")
# What leaves half of the squared error is of use, if nothing is enough.
_HALF = 0.5
# How many lines are wide together.
_MOST_TOGETHER = 64
# From this share of the products on it is no fix to make them wide, if there is another.
_DEAR = 0.5


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
        if run.price and run.error <= bound:
            casting = runs.with_wide(lines, level, keeps=False)
            if casting.error <= bound:
                return casting
        return run

    def merit(run: WideRun) -> tuple[float, ...]:
        if run.error <= bound:
            return 0, run.price > _DEAR, len(run.lines), run.price
        # What leaves nearly the same is as good.
        return 1, round(4 * run.remaining), len(run.lines), run.remaining

    nothing = runs.nothing._replace(level=level)
    alone = {number: wide([number]) for number in candidates}
    best = min([nothing, *alone.values()], key=merit)
    if not candidates or (best.error <= bound and best.price <= _DEAR):
        return best

    def rank(number: int) -> tuple[float, ...]:
        run = alone.get(number, nothing)
        # What makes most products wide comes last, and is dropped first.
        return run.price > _DEAR, run.remaining

    ranked = sorted(order, key=rank)[:_MOST_TOGETHER]
    together = smallest(ranked, lambda lines: wide(lines).error, bound)
    best = min(best, wide(together), key=merit)
    if best.error <= bound or best.remaining <= _HALF:
        return best
    return nothing


def smallest(
    ranked: Sequence[_Item], error: Callable[[Sequence[_Item]], float], bound: float
) -> list[_Item]:
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
