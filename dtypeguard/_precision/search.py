"""Searches what has to stay wide."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)
# Errors above this are all the same.
_MOST = 1e18


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
