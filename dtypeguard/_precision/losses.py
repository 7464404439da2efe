"""Measures within the time limit which lines lose precision, and which to compute wider."""

import dataclasses
import math
from collections.abc import Sequence

from .._leaves.casts import casts_text
from .._numbers.lines import Line
from .advice import advice_of, rounded_digits
from .fix import fix_of
from .prepared import Prepared
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
# How much of the squared error the fix may leave, and the error that is small enough where
# that as written is infinite.
_LEFT = 0.1
_SMALL = 0.1
# How many lines are wide in runs of their own.
_MOST_ALONE = 4


@dataclasses.dataclass
class LineLosses:
    """Measures which lines lose precision, the most important ones first.

    Attributes:
        prepared: the program.
        limit: its time.
        alone: the lines that were wide in runs of their own.
    """

    prepared: Prepared
    limit: TimeLimit
    alone: Sequence[int] = ()

    def add_to(self, report: PrecisionReport) -> PrecisionReport:
        """Returns a report with the lines that have more than a hundredth of the error."""
        measures = self.prepared.measures
        runs = self.prepared.runs

        def show_line(number: int) -> None:
            self.prepared.show(f"measuring line {number + 1} of {measures.lines}")

        # Without an error, each run of a line would only confirm that it has no part in it.
        if runs.total:
            with self.limit.phase(_TIME_OF_LINES):
                measures.measure_alone(show_line)
            with self.limit.phase(_TIME_OF_LINES):
                measures.measure_shares(show_line)
        shares = measures.shares
        flipped = self._flipped()
        order = sorted(shares, key=lambda number: abs(shares[number]), reverse=True)
        important = [n for n in order if abs(shares[n]) > _LEAST_SHARE_OF_ERROR]
        # What no run was made for is unknown.
        fix = WideRun()
        scaling = None
        with self.limit.phase(1.0):
            self.prepared.show("looking for a small set of lines")
            scaling = runs.scaled
            # A plan is the fix already.
            if report.search is None and (order or self.limit.is_complete):
                # A line may flip decisions, and do nothing else.
                candidates = order if flipped > _MOSTLY else important
                fix = self._fix(order, candidates[:_MOST_ALONE], report.run.tolerance)
        rows = [
            # Shares are parts of the rounding; decisions have the rest of the error.
            self._row(number, shares[number] * (1 - flipped), fix)
            for number in order
            if number in important or number in fix.lines
        ]
        unreached = None
        if not self.limit.is_complete:
            unreached = Unreached(
                lines=measures.lines - len(shares),
                # The part of decisions may be unknown, and then there are no shares.
                explained=sum(shares.values()) * (1 - flipped) if shares else 0.0,
                seconds=self.limit.seconds,
                is_interrupted=self.limit.is_interrupted,
            )
        return dataclasses.replace(
            report,
            losses=tuple(rows),
            fixed=report.fixed if report.search else Fixed(fix.error, fix.price),
            decisions=Decisions(flipped, runs.decisions),
            scaling=scaling,
            unreached=unreached,
        )

    def _flipped(self) -> float:
        """Returns the share of the squared error that decisions have; NaN if unknown.

        Negative if they undo what rounding causes.
        """
        total = self.prepared.runs.total
        if not self.prepared.runs.decisions:
            return 0.0
        # The runs that tell it were not made in time.
        if not self.prepared.measures.shares:
            return math.nan
        rounding = self.prepared.measures.total
        if math.isinf(max(total, rounding)):
            return 0.0
        return 1 - (rounding / total) ** 2

    def _fix(
        self, order: Sequence[int], candidates: Sequence[int], tolerance: float | None
    ) -> WideRun:
        """Returns the run with the lines of the fix wide, by the cheapest level."""
        runs = self.prepared.runs
        fix = runs.nothing
        bound = tolerance
        if bound is None:
            # Shares are of the squared error.
            bound = _LEFT**0.5 * runs.total
            if math.isinf(bound):
                bound = _SMALL
        if runs.total <= bound:
            return fix
        # To scale the loss costs nothing.
        if runs.scaled is not None and runs.scaled.error <= bound:
            return fix
        self.alone = candidates
        products = self.prepared.formats.products
        # Each next level multiplies the products that a device does.
        levels = [None] if products is None else products.levels
        for level in levels:
            fix = fix_of(runs, bound, order, candidates, level)
            if fix.error <= bound:
                break
        return fix

    def _row(self, number: int, share: float, fix: WideRun) -> LineLoss:
        line = self.prepared.measures.program.lines[number]
        alone = math.nan
        left_if_wide = math.nan
        with self.limit.phase(1.0):
            # These run the program as well. With no time left, the row does not say them.
            alone = self.prepared.measures.alone(number)
            # The search has made this run, whatever its fix is.
            if number in self.alone:
                left_if_wide = self.prepared.runs.with_wide([number], fix.level).remaining
        constant = line.rounded_constant
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
        return advice_of(
            self.prepared.formats, self.prepared.traced.has_float64, line, fix.keeps
        )
