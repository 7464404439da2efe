"""What a report says of losses: which lines lose precision, and which to compute wider."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .._leaves.casts import shown as shown_casts
from .measure import Measures
from .report import LineLoss
from .values import Line

_LEAST_SHARE = 0.01


class Losses(NamedTuple):
    """The lines that lose precision: see `PrecisionReport`."""

    losses: tuple[LineLoss, ...]
    fix: tuple[LineLoss, ...]
    left: float
    explained: float | None


def line_losses(
    measures: Measures,
    write: Callable[[Line], str],
    tolerance: float | None,
    show_status: Callable[[str], None],
) -> Losses:
    """The lines with more than a hundredth of the error, the most important first.

    Args:
        measures: of the program.
        write: returns what to write for a line.
        tolerance: the error that the fix has to reach.
        show_status: called with what it is about to do.
    """
    numbers = range(measures.lines if measures.total else 0)
    shares = []
    for number in numbers:
        show_status(f"measuring line {number + 1} of {measures.lines}")
        shares.append(measures.share(number))
    is_finite = bool(np.isfinite(shares).all())
    if not is_finite:  # what overflows first, then by the error alone
        alone = [measures.alone(number) for number in numbers]
        worst = max((x for x in alone if np.isfinite(x)), default=1.0) or 1.0
        squares = [min(x / worst, 1e3) ** 2 for x in alone]
        shares = [x / (sum(squares) or 1.0) for x in squares]
    # Where roundings cancel, a share depends on the lines before.
    cancel = sum(map(abs, shares)) > 2
    weight = measures.alone if cancel else lambda number: abs(shares[number])
    order = sorted(numbers, key=lambda number: -weight(number))
    show_status("looking for a small set of lines")
    important = [number for number in order if abs(shares[number]) > _LEAST_SHARE]
    fix = measures.fix(order, important, tolerance)
    losses = {}
    for number in order:
        if number in important or number in fix:
            line, meant = measures.paired.lines[number], measures.constant(number)
            losses[number] = LineLoss(
                origin=line.origin,
                share=shares[number],
                alone=measures.alone(number),
                left=measures.left([number]),
                dtypes=tuple(sorted(line.dtypes)),
                constant=None if meant is None else _rounded(meant, line.constants[meant]),
                remedy=write(line),
                cast=shown_casts([*line.casts]) if line.casts else None,
            )
    return Losses(
        tuple(losses.values()),
        tuple(losses[number] for number in fix),
        measures.left(fix),
        float(sum(shares)) if is_finite else None,
    )


def _rounded(meant: float, number: float) -> str:
    """A number and what became of it, with digits in which they differ."""
    texts = [f"{meant:.{digits}g} -> {number:.{digits}g}" for digits in (6, 9, 17)]
    return next((t for t in texts if len({*t.split(" -> ")}) == 2), texts[0])
