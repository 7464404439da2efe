"""The lines with the fewest operations that are worth computing wider."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from .._numbers.measure import LEFT, Measures

# Up to so many important lines all sets of them are thought of, and the cheapest tried.
_MOST_LINES, _MOST_TRIED = 8, 32


def cheapest(
    measures: Measures,
    work: Mapping[int | None, float],
    order: Sequence[int],
    important: Sequence[int],
    bound: float | None,
) -> list[int]:
    """The lines with the fewest operations that leave an error within a bound.

    What a line of the user's calls in a package becomes wide together: its most important
    line stands for all.

    Args:
        measures: of the program.
        work: the operations of the products of each line.
        order: the lines, the most important first.
        important: those of which a set is looked for.
        bound: the error that is allowed; by default the one that leaves a tenth of the
            squared error.
    """
    most = LEFT**0.5 * measures.total if bound is None else bound
    most = min(most, float(np.finfo(float).max))
    together = _together(measures, order)
    total = lambda firsts, of: sum(map(of, _all(together, firsts)))
    price = lambda firsts: total(firsts, lambda number: work.get(number, 0.0))
    square = lambda number: measures.alone(number) ** 2
    few = [number for number in important if number in together][:_MOST_LINES]
    sizes = range(1, len(few) + 1)
    sets = itertools.chain(*(itertools.combinations(few, size) for size in sizes))
    # Roundings that are independent leave the sum of their squares.
    hopeful = (
        lines
        for lines in sorted(sets, key=price)
        if total(together.keys() - {*lines}, square) <= (2 * most) ** 2
    )
    for lines in itertools.islice(hopeful, _MOST_TRIED):
        if measures.error({*order} - {*_all(together, lines)}) <= most:
            return [*lines]
    worth = lambda number: square(number) / (work.get(number) or 1.0)
    return measures.fix(sorted(order, key=worth, reverse=True), important, bound)


def _together(measures: Measures, order: Sequence[int]) -> dict[int, list[int]]:
    """The lines that one call of the user's leads to, by the first of them in an order."""
    called: dict[object, list[int]] = {}
    for number in order:
        origin = measures.program.lines[number].origin
        users = None if origin is None else origin.called_from
        called.setdefault(users.place if users else number, []).append(number)
    return {lines[0]: lines for lines in called.values()}


def _all(together: Mapping[int, list[int]], firsts: Iterable[int]) -> Iterable[int]:
    return itertools.chain(*(together[number] for number in firsts))
