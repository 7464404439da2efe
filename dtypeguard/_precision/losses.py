"""Measures within the time limit which lines lose precision, and which to compute wider."""

import dataclasses
import math
from collections.abc import Sequence

from .._leaves.casts import casts_text
from .._numbers.lines import Line
from .advice import advice_of, rounded_digits
from .fix import allowed_error, fix_of
from .prepared import Prepared, Show
from .products import remedy_of_product
from .report import PrecisionReport
from .rows import Decisions, Fixed, LineLoss, Unreached
from .runs import WideRun
from .time_limit import TimeLimit

_LEAST_SHARE_OF_ERROR = 0.01
# From this share of the squared error on, it is decisions that matter.
_MOSTLY = 0.5
# The part of the time left in which lines alone, and then shares, are measured: the rest is
# for the fix.
_TIME_OF_LINES = 0.5
# How many lines are wide in runs of their own.
_MOST_ALONE = 4


class LineLosses:
    """Measures which lines lose precision, the most important ones first.

    Args:
        prepared: the program.
        tolerance: the error that the fix has to reach.
        show_status: shows what it is at.
        limit: its time.
    """

    def __init__(
        self,
        prepared: Prepared,
        tolerance: float | None,
        show_status: Show,
        limit: TimeLimit,
    ):
        self._prepared = prepared
        self._measures = prepared.measures
        self._runs = prepared.runs
        self._bound = allowed_error(prepared.runs, tolerance)
        self._show = show_status
        self._limit = limit
        self._alone: Sequence[int] = ()

    def add_to(self, report: PrecisionReport) -> PrecisionReport:
        """Returns a report with the lines that have more than a hundredth of the error."""
        measures = self._measures
        # Without an error, each run of a line would only confirm that it has no part in it.
        if self._runs.total:
            with self._limit.phase(_TIME_OF_LINES):
                measures.measure_alone(self._show_line)
            with self._limit.phase(_TIME_OF_LINES):
                measures.measure_shares(self._show_line)
        shares = measures.shares
        flipped = self._flipped()

        def size(number: int) -> float:
            return abs(shares[number])

        order = sorted(shares, key=size, reverse=True)
        important = []
        for number in order:
            if size(number) > _LEAST_SHARE_OF_ERROR:
                important.append(number)
        # What no run was made for is unknown.
        fix = WideRun()
        scaling = None
        with self._limit.phase(1.0):
            self._show("looking for a small set of lines")
            scaling = self._runs.scaled
            # A plan is the fix already.
            if report.search is None and (order or self._limit.is_complete):
                # A line may flip decisions, and do nothing else.
                candidates = order if flipped > _MOSTLY else important
                fix = self._fix(order, candidates[:_MOST_ALONE])
        rows = []
        for number in order:
            if number in important or number in fix.lines:
                # Shares are parts of the rounding; decisions have the rest of the error.
                share = shares[number] * (1 - flipped)
                rows.append(self._row(number, share, fix))
        unreached = None
        if not self._limit.is_complete:
            unreached = Unreached(
                lines=measures.lines - len(shares),
                # The part of decisions may be unknown, and then there are no shares.
                explained=sum(shares.values()) * (1 - flipped) if shares else 0.0,
                seconds=self._limit.seconds,
                is_interrupted=self._limit.is_interrupted,
            )
        if report.search is None:
            fixed = Fixed(fix.error, fix.price)
            report = dataclasses.replace(report, fixed=fixed)
        return dataclasses.replace(
            report,
            losses=tuple(rows),
            decisions=Decisions(flipped, self._runs.decisions),
            scaling=scaling,
            unreached=unreached,
        )

    def _show_line(self, number: int) -> None:
        lines = self._measures.lines
        self._show(f"measuring line {number + 1} of {lines}")

    def _flipped(self) -> float:
        """Returns the share of the squared error that decisions have; NaN if unknown.

        Negative if they undo what rounding causes.
        """
        if not self._runs.decisions:
            return 0.0
        # The runs that tell it were not made in time.
        if not self._measures.shares:
            return math.nan
        rounding = self._measures.total
        if math.isinf(max(self._runs.total, rounding)):
            return 0.0
        return 1 - (rounding / self._runs.total) ** 2

    def _fix(self, order: Sequence[int], candidates: Sequence[int]) -> WideRun:
        """Returns the run with the lines of the fix wide, by the cheapest level."""
        runs = self._runs
        fix = runs.nothing
        if runs.total <= self._bound:
            return fix
        # To scale the loss costs nothing.
        if runs.scaled is not None and runs.scaled.error <= self._bound:
            return fix
        self._alone = candidates
        products = self._prepared.formats.products
        # Each next level multiplies the products that a device does.
        levels = [None] if products is None else products.levels
        for level in levels:
            fix = fix_of(runs, self._bound, order, candidates, level)
            if fix.error <= self._bound:
                break
        return fix

    def _row(self, number: int, share: float, fix: WideRun) -> LineLoss:
        measures = self._measures
        line = measures.program.lines[number]
        alone = math.nan
        left_if_wide = math.nan
        constant = line.rounded_constant
        with self._limit.phase(1.0):
            # These run the program as well. With no time left, the row does not say them.
            alone = measures.alone(number)
            # The search has made this run, whatever its fix is.
            if number in self._alone:
                run = self._runs.with_wide([number], fix.level)
                left_if_wide = run.remaining
        return LineLoss(
            origin=line.origin,
            share=share,
            alone=alone,
            left=left_if_wide,
            dtypes=tuple(sorted(line.dtypes)),
            constant=None if constant is None else rounded_digits(*constant),
            remedy=self._remedy(line, fix) if number in fix.lines else "",
            cast=casts_text(list(line.casts)) if line.casts else None,
        )

    def _remedy(self, line: Line, fix: WideRun) -> str:
        """Returns what to write for a line of the fix."""
        if fix.level is not None:
            return remedy_of_product(fix.level, line)
        has_float64 = self._prepared.traced.has_float64
        return advice_of(self._prepared.formats, has_float64, line, fix.keeps)
