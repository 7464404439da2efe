"""The parts of a report of precision below its first sentences, a function for each."""

import math
from collections.abc import Sequence

from .._leaves.rows import columns, percent
from .._reference.difference import details_of
from .._source.origin import place_of
from .costs_told import code_of
from .findings import Findings
from .headline import HALF, is_decided, makes_all_wide
from .loss import LineLoss
from .search import MOST_ALONE as _MOST_ALONE

# The legends that this process has printed.
LEGENDS = set[str]()
# From this share of the squared error on, beside a reference, decisions are named.
_LEAST_FLIPPED = 0.01
# Of a scope that is shown.
_LONGEST = 40
# Of the lines that decide.
_MOST_DECISIONS = 5


def compared(report: Findings) -> list[str]:
    """What tells whether the reference is another computation, and where it begins."""
    told = details_of(report.differences, report.divergence)
    if report.differences and report.decisions and report.flipped > _LEAST_FLIPPED:
        told.append(
            f"Rounding includes decisions that flip: {percent(report.flipped)} of the "
            "square of the program's own error."
        )
    return told


def table(report: Findings) -> list[str]:
    """The lines that lose precision, and the decisions that flipped."""
    more = len(report.losses) - len(_shown(report))
    left_out = [f"{more} more lines are in to_json()."] * bool(more)
    return [f"  {row}" for row in (*rows(report), *left_out, *decided(report))]


def rows(report: Findings) -> list[str]:
    """The table of losses."""
    if not report.losses:
        return []
    head = ("share", "alone", "left", "pass", "line", "scope", "rounds to", "")
    rows: list[Sequence[str]] = [head]
    # Beside decisions, shares are those in what rounding alone causes.
    is_part = is_decided(report) and report.flipped < 1
    by_rounding = 1 - report.flipped if is_part else 1.0
    for loss in _shown(report):
        code = loss.origin.code if loss.origin else ""
        dtypes = ", ".join(loss.dtypes) + (f"; {loss.constant}" * bool(loss.constant))
        part = loss.share / by_rounding
        share = "cancels" if part < -0.01 else f"{100 * max(part, 0):.0f}%"
        left = "" if math.isnan(loss.left) else f"{loss.left:.2f}"
        alone, way, scope = percent(loss.alone), loss.of_pass, _shortened(loss.scope)
        rows.append((share, alone, left, way, loss.place, scope, dtypes, code))
    left_out = {3} if not any(loss.backward > 0 for loss in report.losses) else set()
    left_out |= {5} if not any(loss.scope for loss in report.losses) else set()
    return columns([[x for n, x in enumerate(row) if n not in left_out] for row in rows])


def _shown(report: Findings) -> Sequence[LineLoss]:
    """The losses of the table: where decisions matter, few have a share."""
    if not is_decided(report):
        return report.losses
    return [x for n, x in enumerate(report.losses) if n < _MOST_ALONE or x in report.fix]


def _shortened(scope: str) -> str:
    """A scope that leaves room for the rest of its line."""
    return scope if len(scope) <= _LONGEST else f"...{scope[3 - _LONGEST :]}"


def decided(report: Findings) -> list[str]:
    """What decisions that flipped cause, and where."""
    if not report.decisions and not report.turns_differ:
        return []
    how = "cancels" if report.flipped < 0 else percent(report.flipped)
    text = "decisions that flipped" + f": {how}" * (not report.is_of_integers)
    text += "; a loop turns another number of times" * report.turns_differ
    rows = [
        (
            percent(each.flipped / each.count),
            f"of {each.count:,}",
            "inside JAX" if each.origin is None else place_of(each.origin),
            code_of(each.origin),
        )
        for each in report.decisions[:_MOST_DECISIONS]
    ]
    return [text, *columns(rows)]


def legend(report: Findings) -> str:
    """What the columns are."""
    words = report.setting.words
    off = "the share of elements that differ" if report.is_of_integers else words.off
    less = " less that of decisions" * is_decided(report)
    return (
        f"Off is {off}, the root mean square over the outputs; share: of its square{less}"
        "; alone: off if only this line rounds; left: of the square with only "
        f"this line {words.widened}."
    )


def scaling(report: Findings) -> list[str]:
    """What scaling the loss does."""
    scaled = report.by_line.scaled
    if scaled is None:
        return []
    scale = f"{scaled.scale:.0f}"
    if scaled.scale < 1:
        scale = f"2**-{-math.log2(scaled.scale):.0f}"
    left = f"{percent(scaled.left)} of the squared error"
    return [
        f"Multiply the loss by {scale}, and divide the gradients by it in {report.wide}: "
        f"{percent(scaled.error)} off, {left} is left. Or keep the params in "
        f"{report.wide}."
    ]


def advice(report: Findings) -> list[str]:
    """What to write for each line of the fix; nothing where no line stands out."""
    if report.is_spread or makes_all_wide(report):
        return []
    at_once = report.by_line.at_once
    remedies = [at_once] if at_once else [loss.remedy for loss in report.fix]
    return [*dict.fromkeys(remedies)]


def left(report: Findings) -> list[str]:
    """What the advice leaves of the error, and what it costs."""
    if not advice(report):
        return []
    found, words = report.by_line, report.setting.words
    lines = "it" if len(found.fix) == 1 else "these lines"
    how = "" if found.keeps else " and cast back after"
    told = f"With {lines} {words.widened}{how}, {percent(found.best.left)} of the squared "
    told += "error is left"
    if not found.kept.price > 0:
        return [f"{told}."]
    become = f"become {words.become}"
    told += f", and {percent(found.best.price)} of the matrix products {become}."
    name, other = "Kept so", found.kept
    if found.keeps:
        name, other = "Cast back after", found.cast
    if not other.left < HALF:  # not a number where it was not run
        return [told]
    how = f"{percent(other.left)} is left, and {percent(other.price)} {become}."
    return [f"{told} {name}, {how}"]
