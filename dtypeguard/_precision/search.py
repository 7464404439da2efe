"""Searches what has to stay wide: of some items, and of the lines of a program."""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from .rows import WideLines
from .runs import Runs

Item = TypeVar("Item", bound=Hashable)
# How many lines are wide in runs of their own.
_MOST_ALONE = 8
# Of more lines than this, one that leaves less than this is the better advice.
_MANY, _LEFT_BY_ONE = 3, 0.25
# The share of the squared error that a fix may leave.
_HALF = 0.5
# How many runs with lines wide are made, and how many lines may be needed together.
_MOST_RUNS, _MOST_TOGETHER = 48, 64
# Prices below this, and errors above, are all the same.
_LEAST_PRICE, _MOST = 1e-3, 1e18


class Spent(Exception):
    """No run is left."""


class Chosen(NamedTuple, Generic[Item]):
    """What stays wide.

    Attributes:
        items: in the order in which they are the first to be dropped.
        error: with these wide; infinity if no run has told.
        is_within: whether that is within the tolerance.
        is_minimal: whether none can be dropped. It is not known where the runs were spent.
    """

    items: tuple[Item, ...]
    error: float
    is_within: bool
    is_minimal: bool


class Choosing(Generic[Item]):
    """The search for what stays wide, by runs.

    Adding the best ones first finds some that are enough, and dropping the dearest first
    leaves those that are needed. Errors of roundings add up as squares, near enough to say
    with how many to begin.
    """

    def __init__(
        self,
        order: Sequence[Item],
        alone: Callable[[Item], float],
        error_of: Callable[[frozenset[Item]], float],
        tolerance: float,
    ):
        self._order, self._alone, self._error_of = list(order), alone, error_of
        self._tolerance, self._left = tolerance, [*order]

    def chosen(self) -> Chosen[Item]:
        """What stays wide; all of it if that is not enough."""
        is_within = is_minimal = False
        try:
            is_within = self._add()
            if is_within:
                self._drop([*reversed(self._left)])
                self._drop_one_by_one()
                is_minimal = True
            error = self._error_of(frozenset(self._left))
        except Spent:
            error = math.inf
        return Chosen((*reversed(self._left),), error, is_within, is_minimal)

    def _is_within(self, items: Iterable[Item]) -> bool:
        return self._error_of(frozenset(items)) <= self._tolerance

    def _add(self) -> bool:
        """Takes as many of the first ones as are enough; all of them if none are."""
        count, step = self._first_count(), 1
        while count < len(self._order) and not self._is_within(self._order[:count]):
            count, step = count + step, 2 * step
        count = min(count, len(self._order))
        is_within = self._is_within(self._order[:count])
        self._left = self._order[:count]
        return is_within

    def _first_count(self) -> int:
        """How many are enough if errors add up as squares."""
        rest, count = 0.0, len(self._order)
        for item in reversed(self._order):
            rest += min(self._alone(item), 1e18) ** 2
            if not rest <= self._tolerance**2:
                break
            count -= 1
        return count

    def _drop(self, items: Sequence[Item]) -> None:
        """Drops all of these, or else of each half as many as it can."""
        rest = [item for item in self._left if item not in items]
        if self._is_within(rest):
            self._left = rest
        elif len(items) > 1:
            middle = len(items) // 2
            self._drop(items[:middle])
            self._drop(items[middle:])

    def _drop_one_by_one(self) -> None:
        """Drops each that has become dispensable, until none is."""
        for item in [*reversed(self._left)]:
            rest = [other for other in self._left if other != item]
            if self._is_within(rest):
                self._left = rest
                return self._drop_one_by_one()
        return None


class Found(NamedTuple):
    """Lines that are worth computing wider.

    Attributes:
        lines: their numbers, the most important first.
        keeps: whether what they make stays wide; otherwise it is cast back after each.
        run: that with these lines wide.
        alone: the runs in which one line alone is wide, and what it makes.
    """

    lines: list[int]
    keeps: bool
    run: WideLines
    alone: dict[int, WideLines]


class Bound(NamedTuple):
    """The error that is allowed, and whether that was asked for."""

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

    One line is better than two. If no line is enough, the best ones are taken until they
    are, and those that are not needed are dropped again. What is enough must be so for
    other roundings of the inputs as well.
    """
    few = important[:_MOST_ALONE]
    alone = {number: _of(runs, [number], bound.error) for number in few}
    wide = {n: runs.with_wide([n], keeps=True) for n in few}
    nothing = Found([], True, runs.nothing, wide)
    if not bound.is_tolerance:  # to keep inputs wide is no more than to compute all so
        lines, most_price = runs.program.lines, runs.most_price
        dear = [n for n in few if lines[n].origin is None and wide[n].price > most_price]
        alone = {n: each for n, each in alone.items() if n not in dear}
        order = [n for n in order if n not in dear]
    if not alone or runs.total <= bound.error:
        return nothing
    tried = [*alone.values()]
    for found in _candidates(runs, order, alone, bound, error_of):
        tried.append(found)
        if found.run.error <= bound.error and runs.holds(found.run, *bound):
            return _few_enough(runs, found, alone, bound)._replace(alone=wide)
    if bound.is_tolerance:  # which no lines reach
        return _of(runs, order[:_MOST_TOGETHER], bound.error)._replace(alone=wide)
    few_first = lambda x: (round(4 * x.run.left), len(x.lines), x.run.left)
    half = _HALF**0.5 * runs.total
    for found in sorted(tried, key=few_first):
        if found.run.error <= half and runs.holds(found.run, half, False):
            return found._replace(alone=wide)
    return nothing


def _few_enough(runs: Runs, found: Found, alone: dict[int, Found], bound: Bound) -> Found:
    """Lines that are enough; of many, one that leaves next to nothing, if there is one."""
    best = min(alone.values(), key=lambda each: each.run.error)
    is_better = best.run.left < _LEFT_BY_ONE and best.run.price <= runs.most_price
    if len(found.lines) <= _MANY or bound.is_tolerance or not is_better:
        return found
    return best if runs.holds(best.run, *bound) else found


def _candidates(
    runs: Runs,
    order: Sequence[int],
    alone: dict[int, Found],
    bound: Bound,
    error_of: Callable[[int], float],
) -> Iterator[Found]:
    """Lines that may be enough: one line, then several, then what makes most products wide.

    That is no more than to compute everything so.
    """
    by_price = sorted(alone.values(), key=lambda each: each.run.price)
    yield from (each for each in by_price if each.run.price <= runs.most_price)

    def worth(number: int) -> float:
        """What a line alone takes from the squared error, for its price."""
        run, total = alone[number].run, min(runs.total, _MOST)
        share = (min(error_of(number), _MOST) / total) ** 2
        return max(1 - run.left, share) / max(run.price, _LEAST_PRICE)

    by_worth = sorted(alone, key=worth, reverse=True)
    ranked = [*by_worth, *(number for number in order if number not in alone)]
    ranked = ranked[:_MOST_TOGETHER]
    cheap = [n for n in ranked if n not in alone or alone[n].run.price <= runs.most_price]
    chosen = _chosen(runs, cheap, order, bound, error_of)
    if chosen.run.price <= runs.most_price:
        yield chosen
    yield from (each for each in by_price if each.run.price > runs.most_price)
    yield (
        chosen
        if len(cheap) == len(ranked)
        else _chosen(runs, ranked, order, bound, error_of)
    )


def _chosen(
    runs: Runs,
    ranked: Sequence[int],
    order: Sequence[int],
    bound: Bound,
    error_of: Callable[[int], float],
) -> Found:
    """The lines that are needed, of some that are ranked."""

    def error_with(lines: Collection[int]) -> float:
        if runs.count >= _MOST_RUNS:
            raise Spent
        return _of(runs, lines, bound.error).run.error if lines else runs.total

    chosen = Choosing(ranked, error_of, error_with, bound.error).chosen()
    return _of(runs, [n for n in order if n in chosen.items], bound.error)


def _of(runs: Runs, lines: Collection[int], bound: float) -> Found:
    """The better run with some lines wide: what they make stays wide, or is cast back."""
    kept = runs.with_wide(lines, keeps=True)
    # Inputs are not cast back, and what makes no product wide costs nothing.
    is_line = all(runs.program.lines[number].origin is not None for number in lines)
    if not lines or not is_line or (kept.error <= bound and not kept.price):
        return Found([*lines], True, kept, {})
    cast = runs.with_wide(lines, keeps=False)
    if kept.error <= bound:
        keeps = not (cast.error <= bound and cast.price < kept.price)
    else:
        keeps = not cast.error < kept.error
    return Found([*lines], keeps, kept if keeps else cast, {})
