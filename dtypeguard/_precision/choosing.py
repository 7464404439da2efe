"""Chooses what stays wide: within a tolerance, with nothing that could be dropped."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item", bound=Hashable)


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

    Args:
        order: what may stay wide, the best for its price first.
        alone: the error that each causes alone.
        error_of: the error of a run in which some are wide; raises `Spent`.
        tolerance: the error that is allowed.
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
