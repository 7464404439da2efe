"""A report of precision as text: what is off, what helps, the lines, what is not seen."""

import math
from collections.abc import Iterator, Sequence

from .._leaves.table import columns, percent
from .._reference.difference import details_of
from .._source.origin import Origin, place_of
from .figures import Figures
from .headline import (
    few_of,
    headline_text,
    is_beside_rounding,
    narrowing_sentences,
    wide_work_text,
)
from .rows import place_or_inside_jax

# A fix that makes more than this share of the products wide says so.
_MOST = 0.5
# A share that is further below 0 is no noise of the measurement.
_NOISE = 0.01
_MOST_DECISIONS = 5
# From so many outputs on it is said which are furthest off.
_MANY_OUTPUTS = 3


def report_lines(figures: Figures) -> list[str]:
    """Returns the report; if the reference computes otherwise, the comparison alone."""
    compared = details_of(figures.differences, figures.divergence)
    headline = f"precision: {headline_text(figures)}"
    if is_beside_rounding(figures):
        return [headline, *compared]
    return [
        f"{headline}{_answer(figures)}{_unknown_constants(figures)}",
        *compared,
        *_indented([*_loss_rows(figures), *_decision_rows(figures)]),
        *_remedies(figures),
        *_costs(figures),
        *_unreached(figures),
        *_notes(figures),
    ]


def _indented(rows: Sequence[str]) -> list[str]:
    return [f"  {row}" for row in rows]


def _share_text(share: float) -> str:
    """Returns a share of an error; nothing for one that was not measured."""
    if math.isnan(share):
        return ""
    if share < -_NOISE:
        return "cancels"
    return percent(max(share, 0.0))


def _code_text(origin: Origin | None) -> str:
    return "" if origin is None else origin.users.code


# The answer: what computing the lines of the fix wide does


def _answer(figures: Figures) -> str:
    """Returns what the fix does, after a space; nothing where there is nothing to fix."""
    tolerance = figures.run.tolerance
    # Not of an error that is not a number.
    if not figures.error > 0:
        return ""
    # Nothing to fix: what follows would be advice that nobody needs.
    if tolerance is not None and figures.error <= tolerance:
        return f" That is within your {percent(tolerance)}."
    if figures.search is not None:
        return f" By the plan below it is {percent(figures.fixed.error)}."
    if figures.fix:
        return f" With {_fix_text(figures)}."
    if figures.scaling is not None:
        return f" With the loss scaled it is {percent(figures.scaling.error)}."
    # "No line helps" would be a claim about lines that were not measured.
    if figures.unreached is None:
        return " No line helps."
    return ""


def _fix_text(figures: Figures) -> str:
    """Returns what the fix leaves, and whether that is small enough."""
    run = figures.run
    count = len(figures.fix)
    lines = figures.fix[0].place if count == 1 else f"these {count} lines"
    is_of_products = run.matmul_precision is not None
    precision = "at a higher precision" if is_of_products else f"in {run.wide}"
    text = f"{lines} {precision} it is {percent(figures.fixed.error)}"
    if not is_of_products and figures.fixed.price > _MOST:
        text += (
            f", but then {percent(figures.fixed.price)} of the matrix products "
            f"become {run.wide}"
        )
    if run.tolerance is not None:
        within = "within" if figures.fixed.error <= run.tolerance else "not within"
        text += f", {within} your {percent(run.tolerance)}"
    return text


def _unknown_constants(figures: Figures) -> str:
    """Returns, after a space, which constants may have been rounded before the trace."""
    names = [
        f"{row.value:.6g} (within {row.within:.1g}, {place_or_inside_jax(row.origin)})"
        for row in figures.unknown
    ]
    if not names:
        return ""
    return f" Constants of 16 bits that may have been other numbers: {few_of(names)}."


# The lines


def _loss_rows(figures: Figures) -> list[str]:
    """Returns the table of losses."""
    if not figures.losses:
        return []
    table = [("part of error", "off alone", "left if wide", "line", "rounds to", "")]
    for loss in figures.losses:
        rounds_to = ", ".join(loss.dtypes)
        if loss.constant:
            rounds_to += f"; {loss.constant}"
        table.append(
            (
                _share_text(loss.share),
                _share_text(loss.alone),
                _share_text(loss.left),
                loss.place,
                rounds_to,
                _code_text(loss.origin),
            )
        )
    return columns(table)


def _decision_rows(figures: Figures) -> list[str]:
    """Returns what decisions that flipped cause, and where."""
    if not figures.decisions.lines or not figures.error:
        return []
    title = "decisions that flipped"
    share = _share_text(figures.decisions.share)
    # Of outputs that are integers, decisions are all of the error.
    if share and not figures.run.is_of_integers:
        title += f": {share}"
    table = []
    for row in figures.decisions.lines[:_MOST_DECISIONS]:
        table.append(
            (
                percent(row.flipped / row.count),
                f"of {row.count:,}",
                place_or_inside_jax(row.origin),
                _code_text(row.origin),
            )
        )
    return [title, *columns(table)]


def _costs(figures: Figures) -> list[str]:
    """Returns the table of what makes products wide."""
    # With `narrow`, all is as if it were narrow.
    if not figures.work.costs or figures.run.narrow is not None:
        return []
    table = [("share", "line", "made wide by", "")]
    for cost in figures.work.costs:
        table.append(
            (
                percent(cost.share),
                "" if cost.origin is None else place_of(cost.origin),
                "itself" if cost.cause == cost.origin else place_of(cost.cause),
                # An input has no code of its own to show.
                _code_text(cost.cause if isinstance(cost.cause, Origin) else cost.origin),
            )
        )
    rows = _indented(columns(table))
    # Where nothing was run, the headline says it already.
    if math.isnan(figures.error):
        return rows
    return [f"costs: {wide_work_text(figures)}", *rows]


# What to write


def _remedies(figures: Figures) -> Iterator[str]:
    """Yields by what to scale the loss, and the plan, or what to write for the fix."""
    scaling = figures.scaling
    if scaling is not None:
        yield (
            f"Multiply the loss by {scaling.scale:.8g}, and divide the gradients by it in "
            f"{figures.run.wide}: {percent(scaling.error)} off. Or keep the params in "
            f"{figures.run.wide}."
        )
    if figures.search is None:
        # Lines of one call have the same remedy.
        yield from {loss.remedy: None for loss in figures.fix}
    else:
        yield f"For dtypeguard.autocast, a {figures.search.headline}"
        yield from _indented(figures.search.rows())


# What else is to be known


def _unreached(figures: Figures) -> list[str]:
    """Returns what was not measured in the time for lines."""
    unreached = figures.unreached
    if unreached is None:
        return []
    end = "Interrupted"
    remedy = ""
    if not unreached.is_interrupted:
        end = f"Ended after {unreached.seconds:g} s"
        remedy = " Write seconds=None (--seconds none) for all of it."
    measured = "all lines were measured"
    if unreached.lines:
        were = "line was" if unreached.lines == 1 else "lines were"
        measured = f"{unreached.lines} {were} not measured"
        if unreached.explained:
            measured += (
                f", and those that were explain {percent(unreached.explained)} of the "
                "squared error"
            )
    # Lines may have been tried, and the search for a fix not have come to its end.
    fix = (
        "No fix was found yet."
        if math.isnan(figures.left)
        else "The fix may be another one."
    )
    return [f"{end}: {measured}. {fix}{remedy}"]


def _notes(figures: Figures) -> Iterator[str]:
    """Yields which outputs are furthest off or of rounding alone, and what is not seen."""
    counted = []
    vanishing = []

    def error(path: str) -> float:
        return figures.outputs[path].error

    for path in sorted(figures.outputs, key=error, reverse=True):
        names = vanishing if figures.outputs[path].vanishes else counted
        names.append(f"{path or 'the output'} ({percent(error(path))})")
    if len(counted) >= _MANY_OUTPUTS and figures.error:
        yield f"Furthest off of {len(counted)} outputs: {few_of(counted)}."
    if vanishing:
        how = "not counted" if counted else "counted, since there are no others"
        yield (
            f"0 but for rounding, in {figures.run.wide} as well, or made of such values, "
            f"and {how}: {few_of(vanishing)}."
        )
    if not figures.is_traced_wide and figures.run.matmul_precision is None:
        yield (
            "It does not trace with float32 arguments, so its constants count as they are."
        )
    # Without an error the headline has it.
    if figures.error:
        yield from narrowing_sentences(figures.narrowed)
