"""Measures within the time limit which lines lose precision, and which to compute wider."""

import dataclasses
import math

from .._leaves.casts import casts_text
from .advice import remedy_of
from .fix import fix_of
from .found_plan import error_of, share_of
from .prepared import Prepared
from .report import PrecisionReport
from .rows import Decisions, Fixed, LineLoss, Unexamined, Unreached
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


def with_losses(
    report: PrecisionReport, prepared: Prepared, limit: TimeLimit
) -> PrecisionReport:
    """Returns a report with the lines that have more than a hundredth of the error."""
    measures = prepared.measures
    runs = prepared.runs

    def show_line(number: int) -> None:
        prepared.show(f"measuring line {number + 1} of {measures.lines}")

    # Without an error, each run of a line would only confirm that it has no part in it.
    if runs.total:
        with limit.phase(_TIME_OF_LINES):
            measures.measure_alone(show_line)
        with limit.phase(_TIME_OF_LINES):
            measures.measure_shares(show_line)
    shares = measures.shares
    flipped = _share_of_decisions(prepared)
    order = sorted(shares, key=lambda number: abs(shares[number]), reverse=True)
    important = [n for n in order if abs(shares[n]) > _LEAST_SHARE_OF_ERROR]
    # A line may flip decisions, and do nothing else.
    candidates = (order if flipped > _MOSTLY else important)[:_MOST_ALONE]
    # What no run was made for is unknown.
    fix = WideRun()
    tried = []
    scaling = None
    with limit.phase(1.0):
        prepared.show("looking for a small set of lines")
        scaling = runs.scaled
        error = runs.total
        # To scale the loss costs nothing.
        if scaling is not None:
            error = min(error, scaling.error)
        bound = report.run.tolerance
        if bound is None:
            # Shares are of the squared error.
            bound = _SMALL if math.isinf(runs.total) else _LEFT**0.5 * runs.total
        if report.search is not None:
            # The plan counts what is narrow, and the fix pays for what is wide.
            plan = report.search.plan
            fix = WideRun(error=error_of(plan), price=1 - share_of(plan))
        elif error <= bound:
            fix = runs.nothing
        elif order or limit.is_complete:
            tried = candidates
            # Each next level multiplies the products that a device does.
            for level in prepared.formats.levels:
                fix = fix_of(runs, bound, order, candidates, level)
                if fix.error <= bound:
                    break
    rows = []
    for number in order:
        if number not in important and number not in fix.lines:
            continue
        line = measures.program.lines[number]
        left_if_wide = math.nan
        with limit.phase(1.0):
            # The search has made this run, unless its time was over before.
            if number in tried:
                left_if_wide = runs.with_wide([number], fix.level).remaining
        rows.append(
            LineLoss(
                origin=line.origin,
                # Shares are parts of the rounding; decisions have the rest of the error.
                share=shares[number] * (1 - flipped),
                alone=measures.alone(number),
                left=left_if_wide,
                dtypes=tuple(sorted(line.dtypes)),
                constant=line.rounded_constant,
                remedy=remedy_of(line, fix, prepared) if number in fix.lines else "",
                cast=casts_text(list(line.casts)) if line.casts else None,
            )
        )
    unreached = None
    if not limit.is_complete:
        unreached = Unreached(
            lines=measures.lines - len(shares),
            # The part of decisions may be unknown, and then there are no shares.
            explained=sum(shares.values()) * (1 - flipped) if shares else 0.0,
            seconds=limit.seconds,
            is_interrupted=limit.is_interrupted,
        )
    return dataclasses.replace(
        report,
        losses=tuple(rows),
        fixed=Fixed(fix.error, fix.price),
        decisions=Decisions(flipped, runs.decisions),
        scaling=scaling,
        unreached=unreached,
        # Runs with lines wide may have found more of them.
        unexamined=tuple(Unexamined(*row) for row in measures.program.unexamined),
    )


def _share_of_decisions(prepared: Prepared) -> float:
    """Returns the share of the squared error that decisions have; NaN if unknown.

    Negative if they undo what rounding causes.
    """
    total = prepared.runs.total
    if not prepared.runs.decisions:
        return 0.0
    # The runs that tell it were not made in time.
    if not prepared.measures.shares:
        return math.nan
    rounding = prepared.measures.total
    if math.isinf(max(total, rounding)):
        return 0.0
    return 1 - (rounding / total) ** 2
