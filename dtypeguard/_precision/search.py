"""Searches the lines that are worth computing wider, by runs with some of them wide."""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .records import WideLines
from .runs import Runs

# How many lines are wide in runs of their own, once kept and once cast back.
MOST_ALONE = 8
# Of the sets of few lines that may be enough, so many are tried.
_MOST_TRIED = 8
# Of more lines than this, one that leaves less than this is the better advice.
_MANY, _LEFT_BY_ONE = 3, 0.25
# The share of the squared error that a fix may leave.
_HALF = 0.5
# How many runs with lines wide are made.
_MOST_RUNS = 48
# How many of the most important lines may be needed together.
_MOST_TOGETHER = 64
_NONE = WideLines()


class Found(NamedTuple):
    """The lines that are worth computing wider.

    Attributes:
        lines: their numbers, the most important first.
        keeps: whether what they make stays wide; otherwise it is cast back after each.
        kept: the run in which it stays so.
        cast: that in which it is cast back; not a number for inputs.
        alone: the runs in which one line alone is wide, and what it makes.
    """

    lines: list[int]
    keeps: bool
    kept: WideLines
    cast: WideLines
    alone: dict[int, WideLines]

    @property
    def best(self) -> WideLines:
        """The run that is advised."""
        return self.kept if self.keeps else self.cast


NOTHING = Found([], True, _NONE, _NONE, {})


class Bound(NamedTuple):
    """The error that is allowed.

    Attributes:
        error: how large it may be.
        is_tolerance: whether that was asked for.
    """

    error: float
    is_tolerance: bool


def find(
    runs: Runs,
    order: Sequence[int],
    important: Sequence[int],
    bound: Bound,
    error_of: Callable[[int], float],
) -> Found:
    """The lines whose run has the lowest price of those within a bound, or of a few lines.

    One line is better than two. If no few lines are enough, the most important ones are
    taken until they are, and those that are not needed are left out again. What is enough
    must be so for other roundings of the inputs as well.

    Args:
        runs: of the program.
        order: its lines, the most important first.
        important: those with a share that counts.
        bound: the error that is allowed.
        error_of: the error that a line causes alone.
    """
    few = important[:MOST_ALONE]
    left = _left(order, error_of)
    most = _most(bound.error)
    alone = {n: _of(runs, [n], bound.error, casts=left([n]) <= most) for n in few}
    wide = {number: each.kept for number, each in alone.items()}
    if not bound.is_tolerance:  # to keep inputs wide is no more than to compute all so
        lines, most_price = runs.program.lines, runs.most_price
        dear = [n for n in alone if lines[n].origin is None and wide[n].price > most_price]
        alone = {n: each for n, each in alone.items() if n not in dear}
        order = [n for n in order if n not in dear]
        if not alone:
            return NOTHING._replace(kept=runs.nothing, alone=wide)
    if not few or runs.total <= bound.error:
        return NOTHING._replace(kept=runs.nothing, alone=wide)
    tried = [*alone.values()]
    for found in _candidates(runs, order, alone, bound, error_of):
        tried.append(found)
        if found.best.error <= bound.error and runs.holds(found.best, *bound):
            few_enough = _few_enough(runs, found, alone, bound)
            return few_enough._replace(alone=wide)
    if bound.is_tolerance:  # which no lines reach
        found = _of(runs, order[:_MOST_TOGETHER], bound.error)
    else:
        found = _nearest(runs, tried)
    return found._replace(alone=wide)


def _nearest(runs: Runs, tried: Sequence[Found]) -> Found:
    """Where no lines are enough, what leaves least of what leaves at most half."""
    few = lambda each: (round(4 * each.best.left), len(each.lines), each.best.left)
    for each in sorted(tried, key=few):
        half = _HALF**0.5 * runs.total
        if each.best.error <= half and runs.holds(each.best, half, False):
            return each
    return NOTHING._replace(kept=runs.nothing)


def _few_enough(
    runs: Runs, found: Found, alone: Mapping[int, Found], bound: Bound
) -> Found:
    """Lines that are enough; of many, one that leaves next to nothing, if there is one."""
    best = min(alone.values(), key=lambda each: each.best.error)
    is_better = best.best.left < _LEFT_BY_ONE and best.best.price <= runs.most_price
    if len(found.lines) <= _MANY or bound.is_tolerance or not is_better:
        return found
    return best if runs.holds(best.best, *bound) else found


def _candidates(
    runs: Runs,
    order: Sequence[int],
    alone: Mapping[int, Found],
    bound: Bound,
    error_of: Callable[[int], float],
) -> Iterator[Found]:
    """Lines that may be enough: the first that are will do.

    One line comes before several, but for what makes most products wide: that is no more
    than to compute everything so.
    """
    by_price = sorted(alone.values(), key=lambda each: each.best.price)
    dear = {number for number, each in alone.items() if each.kept.price > runs.most_price}

    def of(lines: Collection[int]) -> Found:
        in_order = [number for number in order if number in lines]
        return _of(runs, in_order, bound.error, not dear.isdisjoint(lines))

    yield from (each for each in by_price if each.best.price <= runs.most_price)
    sets = _hopeful([*alone], alone, order, bound, error_of)
    tried = map(of, itertools.islice(sets, _MOST_TRIED))
    yield from (each for each in tried if each.best.price <= runs.most_price)
    yield from (each for each in by_price if each.best.price > runs.most_price)
    by_effect = sorted(alone, key=lambda number: _least(alone[number]))
    ranked = [*by_effect, *(number for number in order if number not in alone)]
    for size in _sizes(runs, ranked[:_MOST_TOGETHER], bound.error):
        needed = _needed(runs, ranked[:size], bound.error)
        yield _of(runs, [n for n in order if n in needed], bound.error)


def _of(
    runs: Runs,
    lines: Sequence[int],
    bound: float,
    is_expensive: bool = False,
    casts: bool = True,
) -> Found:
    """Both runs with some lines wide, and which of them is the better one.

    Args:
        runs: of the program.
        lines: their numbers.
        bound: the error that is allowed.
        is_expensive: whether what they make is known to be so if it stays wide: then that
            is not run.
        casts: whether it is run with it cast back, which leaves what other lines round.
    """
    kept = cast = _NONE
    if not is_expensive:
        kept = runs.with_wide(lines, keeps=True)
    # Inputs are not cast back, and what makes no product wide costs nothing.
    is_line = all(runs.program.lines[number].origin is not None for number in lines)
    if casts and is_line and not (kept.error <= bound and not kept.price):
        cast = runs.with_wide(lines, keeps=False)
    if kept.error <= bound:
        keeps = not (cast.error <= bound and cast.price < kept.price)
    else:
        keeps = not (is_expensive or cast.error < kept.error)
    return Found([*lines], keeps, kept, cast, {})


def _least(found: Found) -> float:
    return float(np.fmin(found.kept.error, found.cast.error))


def _is_enough(runs: Runs, lines: Sequence[int], bound: float) -> bool:
    """Whether lines are enough; once all runs are made, no others are."""
    return runs.count < _MOST_RUNS and _least(_of(runs, lines, bound)) <= bound


def _hopeful(
    few: Sequence[int],
    alone: Mapping[int, Found],
    order: Sequence[int],
    bound: Bound,
    error_of: Callable[[int], float],
) -> Iterable[tuple[int, ...]]:
    """Sets of lines without which the error may be small, the cheapest first.

    Roundings that are independent leave the sum of their squares.
    """
    prices = {number: np.fmin(x.kept.price, x.cast.price) for number, x in alone.items()}
    price = lambda lines: (round(sum(prices[n] for n in lines), 3), len(lines))
    most = _most(bound.error)
    sizes = range(2, len(few) + 1)
    sets = itertools.chain(*(itertools.combinations(few, size) for size in sizes))
    left = _left(order, error_of)
    return sorted((lines for lines in sets if left(lines) <= most), key=price)


def _left(
    order: Sequence[int], error_of: Callable[[int], float]
) -> Callable[[Iterable[int]], float]:
    """The squared error without the roundings of some lines, if these are independent."""
    square = {number: error_of(number) ** 2 for number in order}
    total = sum(square.values())
    return lambda lines: total - sum(square[number] for number in lines)


def _most(bound: float) -> float:
    """What may be left so for it to be worth a run."""
    return (2 * bound) ** 2


def _sizes(runs: Runs, ranked: Sequence[int], bound: float) -> Iterator[int]:
    """How many of the first lines are enough; more of them, if these are not in truth."""
    low, high = 1, 2
    while high < len(ranked) and not _is_enough(runs, ranked[:high], bound):
        low, high = high, 2 * high
    high = min(high, len(ranked))
    while high - low > 1:
        middle = (low + high) // 2
        if _is_enough(runs, ranked[:middle], bound):
            high = middle
        else:
            low = middle
    while high < len(ranked):
        yield high
        high *= 2
    yield len(ranked)


def _needed(runs: Runs, lines: list[int], bound: float) -> set[int]:
    """Those of some lines without which the others are not enough."""
    left = [*lines]
    bound = max(bound, _least(_of(runs, lines, bound)))

    def leave_out(candidates: Iterable[int]) -> None:
        """Leaves out all of these lines, or else of each half as many as it can."""
        candidates = [*candidates]
        rest = [number for number in left if number not in candidates]
        if rest and _is_enough(runs, rest, bound):
            left[:] = rest
        elif len(candidates) > 1:
            middle = len(candidates) // 2
            leave_out(candidates[:middle])
            leave_out(candidates[middle:])

    leave_out(reversed(lines))
    return {*left}
