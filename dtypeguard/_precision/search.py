"""Searches what has to stay wide: of some items, and of the lines of a program."""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple, TypeVar

from .runs import Runs, WideRun

Item = TypeVar("Item", bound=Hashable)
# How many lines are wide in runs of their own.
MOST_ALONE = 8
# The share of the squared error that a fix may leave.
_HALF = 0.5
# From this share of the products on it is no fix to make them wide, if there is another.
_MOST_PRICE = 0.5
# How many runs with lines wide are made, and how many lines may be needed together.
_MOST_RUNS, _MOST_TOGETHER = 48, 64
# Prices below this, and errors above, are all the same.
_LEAST_PRICE, _MOST = 1e-3, 1e18


class Spent(Exception):
    """No run is left."""


def choose(
    order: Sequence[Item],
    alone: Callable[[Item], float],
    error_of: Callable[[frozenset[Item]], float],
    tolerance: float,
) -> tuple[tuple[Item, ...], bool]:
    """What stays wide, by runs; all of it if that is not enough.

    Adding the best ones first finds some that are enough, and dropping the dearest first
    leaves those that are needed. Errors of roundings add up as squares, near enough to say
    with how many to begin.

    Args:
        order: the items, the best first.
        alone: the error that an item causes alone.
        error_of: the error with some of them wide.
        tolerance: the error that is allowed.

    Returns:
        The items, the first to be dropped first, and whether none can be dropped: that is
        not known where the runs were spent.
    """
    left, is_minimal = [*order], True
    is_within = lambda items: error_of(frozenset(items)) <= tolerance
    try:
        rest, count, step = 0.0, len(order), 1
        for item in reversed(order):
            rest += min(alone(item), _MOST) ** 2
            if not rest <= tolerance**2:
                break
            count -= 1
        while count < len(order) and not is_within(order[:count]):
            count, step = count + step, 2 * step
        left = [*order[:count]]
        for item in reversed(left) if is_within(left) else ():
            others = [other for other in left if other != item]
            left = others if is_within(others) else left
    except Spent:
        is_minimal = False
    return (*reversed(left),), is_minimal


class Found(NamedTuple):
    """Lines that are worth computing wider: their numbers, and the run with them wide."""

    lines: list[int]
    run: WideRun


def find(
    runs: Runs,
    order: Sequence[int],
    important: Sequence[int],
    bound: float,
    is_tolerance: bool,
    error_of: Callable[[int], float],
) -> Found:
    """The lines whose run has the lowest price of those within a bound, or of a few lines.

    One line is better than two. If no line is enough, the best ones are taken until they
    are, and those that are not needed are dropped again. Without a tolerance, lines that
    leave half of the squared error are of use as well.
    """
    nothing = Found([], runs.nothing)
    few = important[:MOST_ALONE]
    if not is_tolerance:  # to keep inputs wide is no more than to compute all so
        lines = runs.program.lines
        is_dear = lambda n: runs.with_wide([n], keeps=True).price > _MOST_PRICE
        dear = [n for n in few if lines[n].origin is None and is_dear(n)]
        few, order = ([n for n in each if n not in dear] for each in (few, order))
    if not few or runs.total <= bound:
        return nothing
    alone = {n: _of(runs, [n], bound) for n in few}
    tried = sorted(alone.values(), key=lambda each: each.run.price)
    # What makes most products wide is no more than to compute all so: it comes last.
    is_dear = lambda each: each.run.price > _MOST_PRICE
    is_enough = lambda each: each.run.error <= bound
    if not any(is_enough(x) and not is_dear(x) for x in tried):
        cheap = [n for n in order if n not in alone or not is_dear(alone[n])]
        tried.append(_several(runs, cheap, alone, bound, error_of))
    if not any(map(is_enough, tried)):
        tried.append(_several(runs, order, alone, bound, error_of))
    if enough := [*filter(is_enough, tried)]:
        return min(enough, key=lambda each: (is_dear(each), len(each.lines) > 1))
    if is_tolerance:  # which no lines reach
        return _of(runs, order[:_MOST_TOGETHER], bound)
    helps = [each for each in tried if each.run.error <= _HALF**0.5 * runs.total]
    few_first = lambda x: (round(4 * x.run.left), len(x.lines), x.run.left)
    return min(helps, key=few_first, default=nothing)


def _several(
    runs: Runs,
    order: Sequence[int],
    alone: dict[int, Found],
    bound: float,
    error_of: Callable[[int], float],
) -> Found:
    """Lines that are enough together, and each needed; all of them if they are not."""

    def worth(number: int) -> float:
        """What a line alone takes from the squared error, for its price."""
        run, total = alone[number].run, min(runs.total, _MOST)
        share = (min(error_of(number), _MOST) / total) ** 2
        return max(1 - run.left, share) / max(run.price, _LEAST_PRICE)

    def error_with(lines: Collection[int]) -> float:
        if runs.count >= _MOST_RUNS:
            raise Spent
        return _of(runs, lines, bound).run.error if lines else runs.total

    ranked = sorted(filter(alone.__contains__, order), key=worth, reverse=True)
    ranked = [*ranked, *(number for number in order if number not in alone)]
    items, _ = choose(ranked[:_MOST_TOGETHER], error_of, error_with, bound)
    return _of(runs, [n for n in order if n in items], bound)


def _of(runs: Runs, lines: Collection[int], bound: float) -> Found:
    """The better run with some lines wide: what they make stays wide, or is cast back."""
    kept = runs.with_wide(lines, keeps=True)
    # Inputs are not cast back, and what makes no product wide costs nothing.
    is_line = all(runs.program.lines[number].origin is not None for number in lines)
    if not lines or not is_line or (kept.error <= bound and not kept.price):
        return Found([*lines], kept)
    cast = runs.with_wide(lines, keeps=False)
    if kept.error <= bound:
        is_better = cast.error <= bound and cast.price < kept.price
    else:
        is_better = cast.error < kept.error
    return Found([*lines], cast if is_better else kept)
