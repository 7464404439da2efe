"""What a report says of losses: which lines lose precision, and which to compute wider."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from .._leaves.casts import casts_text
from .._numbers.lines import Line
from .._numbers.measure import Measures
from .advice import rounded_digits
from .fix import allowed_error, fix_of
from .prepared import Show
from .rows import LineLoss, Scaled, Unreached
from .runs import Runs, WideRun
from .time_limit import TimeLimit

RemedyOfLine = Callable[[Line, bool], str]

_LEAST_SHARE_OF_ERROR = 0.01
# From this share of the squared error on, it is decisions that matter.
_MOSTLY = 0.5
# The part of the time left in which lines alone, and then shares, are measured: the rest is
# for the fix.
_TIME_OF_LINES = 0.5
# How many lines are wide in runs of their own.
_MOST_ALONE = 8
# Shares of lines whose roundings cancel add up, without their signs, to more than this.
_CANCEL = 2


class Losses(NamedTuple):
    """What was measured of lines.

    Attributes:
        lines: those that lose precision.
        run: that with the lines of the fix wide.
        scaling: what scaling the loss does, if it helps.
        flipped: the share of the squared error that decisions have.
        unreached: what was not measured in time, if anything.
    """

    lines: tuple[LineLoss, ...]
    run: WideRun
    scaling: Scaled | None
    flipped: float
    unreached: Unreached | None


class LineLosses:
    """Measures which lines lose precision, the most important ones first.

    Args:
        measures: of the program.
        runs: of the program.
        tolerance: the error that the fix has to reach.
        show_status: shows what it is at.
        limit: its time.
    """

    def __init__(
        self,
        measures: Measures,
        runs: Runs,
        tolerance: float | None,
        show_status: Show,
        limit: TimeLimit,
    ):
        self._measures = measures
        self._runs = runs
        self._tolerance = tolerance
        self._show = show_status
        self._limit = limit
        self._alone: dict[int, WideRun] = {}
        self._scaling: Scaled | None = None

    def losses(self, remedy: RemedyOfLine, planned: Collection[int] | None) -> Losses:
        """Returns the lines with more than a hundredth of the error.

        Args:
            remedy: what to write for a line.
            planned: the lines of a plan, which are the fix.
        """
        measures = self._measures
        self._measure()
        shares = self._shares()
        order = self._ranked(shares)
        flipped = self._flipped()
        # What no run was made for is unknown.
        fix = self._runs.nothing._replace(error=math.nan, left=math.nan, price=math.nan)
        if planned is not None:
            planned_lines = [number for number in order if number in planned]
            fix = fix._replace(lines=tuple(planned_lines))
        important = [n for n in order if abs(shares[n]) > _LEAST_SHARE_OF_ERROR]
        with self._limit.phase(1.0):
            self._show("looking for a small set of lines")
            self._scaling = self._runs.scaled()
            has_lines = bool(order) or self._limit.is_complete
            if planned is None and has_lines:
                candidates = important
                if flipped > _MOSTLY:  # a line may flip decisions, and do nothing else
                    rest = [n for n in order if n not in important]
                    candidates = [*important, *rest]
                fix = self._fix(order, candidates[:_MOST_ALONE])
        rows: list[LineLoss] = []
        for number in order:
            if number in important or number in fix.lines:
                text = ""
                if number in fix.lines:
                    text = remedy(measures.program.lines[number], fix.keeps)
                # Shares are parts of the rounding; decisions have the rest of the error.
                rows.append(self._row(number, shares[number] * (1 - flipped), text))
        unreached = self._unreached(shares, flipped)
        return Losses(tuple(rows), fix, self._scaling, flipped, unreached)

    def _measure(self) -> None:
        measures = self._measures
        # Without an error, each run of a line would only confirm that it has no part in it.
        if not self._runs.total:
            return
        with self._limit.phase(_TIME_OF_LINES):
            measures.measure_alone(self._show_line)
        with self._limit.phase(_TIME_OF_LINES):
            measures.measure_shares(self._show_line)

    def _show_line(self, number: int) -> None:
        self._show(f"measuring line {number + 1} of {self._measures.lines}")

    def _shares(self) -> dict[int, float]:
        """Returns the share of each line that was measured."""
        measures = self._measures
        is_known = measures.has_exact_outputs
        # The time was over before there was anything to compare lines with.
        if self._runs.total and not is_known:
            return {}
        if self._runs.total and measures.total:
            return measures.shares
        # There is no error, or all of it is decisions.
        return dict(enumerate(np.zeros(measures.lines).tolist()))

    def _flipped(self) -> float:
        """Returns the share of the squared error that decisions have; NaN if unknown."""
        if self._measures.has_exact_outputs:
            return self._runs.flipped(self._measures.total)
        # The runs that tell it were not made in time.
        has_flipped = self._runs.total and self._runs.decisions
        return math.nan if has_flipped else 0.0

    def _ranked(self, shares: dict[int, float]) -> list[int]:
        """Returns the lines with shares, the most important ones first."""
        # Where roundings cancel, a share depends on the lines before.
        cancel = sum(abs(share) for share in shares.values()) > _CANCEL

        def rank(number: int) -> float:
            weight = self._measures.alone(number) if cancel else abs(shares[number])
            # What is nearly the same is in the order of the program.
            return -float(f"{weight:.2g}")

        return sorted(sorted(shares), key=rank)

    def _fix(self, order: Sequence[int], candidates: Sequence[int]) -> WideRun:
        """Returns the run with the lines of the fix wide."""
        runs = self._runs
        bound = allowed_error(runs, self._tolerance)
        if self._scaling is not None and self._scaling.error <= bound:
            return runs.nothing  # to scale the loss costs nothing
        for number in candidates:
            # The report shows these, whatever the search makes of them.
            self._alone[number] = runs.with_wide([number], keeps=True)
        return fix_of(runs, bound, self._tolerance is not None, order, candidates)

    def _row(self, number: int, share: float, remedy: str) -> LineLoss:
        measures = self._measures
        line = measures.program.lines[number]
        alone = math.nan
        constant = None
        with self._limit.phase(1.0):
            # These run the program as well. With no time left, the row does not say them.
            alone = measures.alone(number)
            number_meant = measures.constant(number)
            if number_meant is not None:
                rounded = line.constants[number_meant]
                constant = rounded_digits(number_meant, rounded)
        wide_run = self._alone.get(number)
        return LineLoss(
            origin=line.origin,
            share=share,
            alone=alone,
            left=math.nan if wide_run is None else wide_run.left,
            dtypes=tuple(sorted(line.dtypes)),
            constant=constant,
            remedy=remedy,
            cast=casts_text(list(line.casts)) if line.casts else None,
        )

    def _unreached(self, shares: dict[int, float], flipped: float) -> Unreached | None:
        if self._limit.is_complete:
            return None
        return Unreached(
            lines=self._measures.lines - len(shares),
            # The part of decisions may be unknown, and then there are no shares.
            explained=sum(shares.values()) * (1 - flipped) if shares else 0.0,
            seconds=self._limit.seconds,
            is_interrupted=self._limit.is_interrupted,
        )
