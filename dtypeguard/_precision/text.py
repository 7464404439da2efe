"""A report of precision as text: what is off, what helps, the lines, what is not seen."""

import math
from collections.abc import Sequence

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
from .rows import OutputError, place_or_inside_jax

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
        " ".join([headline, *_answer(figures), *_unknown_constants(figures)]),
        *compared,
        *_indented([*_loss_rows(figures), *_decision_rows(figures)]),
        *_loss_scale(figures),
        *_remedies(figures),
        *_costs(figures),
        *_unreached(figures),
        *_output_notes(figures),
        *_trace_notes(figures),
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


def _answer(figures: Figures) -> list[str]:
    """Returns what the fix does; nothing where there is nothing to fix."""
    tolerance = figures.run.tolerance
    if math.isnan(figures.error) or not figures.error:
        return []
    # Nothing to fix: what follows would be advice that nobody needs.
    if tolerance is not None and figures.error <= tolerance:
        return [f"That is within your {percent(tolerance)}."]
    if figures.search is not None:
        error = percent(figures.fixed.error)
        return [f"By the plan below it is {error}."]
    if figures.scaling is not None and not figures.fix:
        error = percent(figures.scaling.error)
        return [f"With the loss scaled it is {error}."]
    if figures.fix:
        return [_fix_text(figures)]
    # "No line helps" would be a claim about lines that were not measured.
    return ["No line helps."] if figures.unreached is None else []


def _fix_text(figures: Figures) -> str:
    """Returns what the fix leaves, and whether that is small enough."""
    run = figures.run
    lines = f"these {len(figures.fix)} lines"
    if len(figures.fix) == 1:
        lines = figures.fix[0].place
    precision = f"in {run.wide}"
    if run.matmul_precision is not None:
        precision = "at a higher precision"
    error = percent(figures.fixed.error)
    text = f"With {lines} {precision} it is {error}"
    if run.matmul_precision is None and figures.fixed.price > _MOST:
        price = percent(figures.fixed.price)
        text += f", but then {price} of the matrix products become {run.wide}"
    if run.tolerance is not None:
        is_within = figures.fixed.error <= run.tolerance
        within = "within" if is_within else "not within"
        bound = percent(run.tolerance)
        text += f", {within} your {bound}"
    return f"{text}."


def _unknown_constants(figures: Figures) -> list[str]:
    """Returns the sentence on constants that were rounded before the trace, it may be."""
    names = []
    for row in figures.unknown:
        value = f"{row.value:.6g}"
        within = f"within {row.within:.1g}"
        where = place_or_inside_jax(row.origin)
        name = f"{value} ({within}, {where})"
        names.append(name)
    if not names:
        return []
    few = few_of(names)
    return [f"Constants of 16 bits that may have been other numbers: {few}."]


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
    decisions = figures.decisions
    if not decisions.lines or not figures.error:
        return []
    title = "decisions that flipped"
    share = _share_text(decisions.share)
    # Of outputs that are integers, decisions are all of the error.
    if share and not figures.run.is_of_integers:
        title += f": {share}"
    table = []
    for row in decisions.lines[:_MOST_DECISIONS]:
        flipped = percent(row.flipped / row.count)
        count = f"of {row.count:,}"
        place = place_or_inside_jax(row.origin)
        code = _code_text(row.origin)
        table.append((flipped, count, place, code))
    return [title, *columns(table)]


def _costs(figures: Figures) -> list[str]:
    """Returns the table of what makes products wide."""
    work = figures.work
    # With `narrow`, all is as if it were narrow.
    if not work.costs or figures.run.narrow is not None:
        return []
    table = [("share", "line", "made wide by", "")]
    for cost in work.costs:
        where = ""
        if cost.origin is not None:
            where = place_of(cost.origin)
        cause = "itself"
        if cost.cause != cost.origin:
            cause = place_of(cost.cause)
        # An input has no code of its own to show.
        code_at = cost.origin
        if isinstance(cost.cause, Origin):
            code_at = cost.cause
        code = _code_text(code_at)
        share = percent(cost.share)
        table.append((share, where, cause, code))
    rows = _indented(columns(table))
    # Where nothing was run, the headline says it already.
    if math.isnan(figures.error):
        return rows
    return [f"costs: {wide_work_text(figures)}", *rows]


# What to write


def _loss_scale(figures: Figures) -> list[str]:
    """Returns by what to scale the loss, if that helps."""
    scaling = figures.scaling
    if scaling is None:
        return []
    wide = figures.run.wide
    return [
        f"Multiply the loss by {scaling.scale:.8g}, and divide the gradients by it in "
        f"{wide}: {percent(scaling.error)} off. Or keep the params in {wide}."
    ]


def _remedies(figures: Figures) -> list[str]:
    """Returns what to write for the lines of the fix, or the plan that has them."""
    if figures.search is not None:
        title = f"For dtypeguard.autocast, a {figures.search.headline}"
        return [title, *_indented(figures.search.rows())]
    sentences = []
    for loss in figures.fix:
        # Lines of one call have the same remedy.
        if loss.remedy not in sentences:
            sentences.append(loss.remedy)
    return sentences


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
    if unreached.lines and unreached.explained:
        share = percent(unreached.explained)
        measured += f", and those that were explain {share} of the squared error"
    # Lines may have been tried, and the search for a fix not have come to its end.
    no_fix = math.isnan(figures.left)
    fix = "No fix was found yet." if no_fix else "The fix may be another one."
    return [f"{end}: {measured}. {fix}{remedy}"]


def _output_notes(figures: Figures) -> list[str]:
    """Returns the outputs that are furthest off, and those of rounding alone."""
    counted = []
    vanishing = []
    outputs = figures.outputs.items()
    for path, output in sorted(outputs, key=_error_of_output, reverse=True):
        names = vanishing if output.vanishes else counted
        place = path or "the output"
        error = percent(output.error)
        names.append(f"{place} ({error})")
    sentences = []
    count = len(counted)
    if count >= _MANY_OUTPUTS and figures.error:
        worst = few_of(counted)
        sentences.append(f"Furthest off of {count} outputs: {worst}.")
    if vanishing:
        how = "not counted" if counted else "counted, since there are no others"
        sentences.append(
            f"0 but for rounding, in {figures.run.wide} as well, or made of such values, "
            f"and {how}: {few_of(vanishing)}."
        )
    return sentences


def _error_of_output(item: tuple[str, OutputError]) -> float:
    _, output = item
    return output.error


def _trace_notes(figures: Figures) -> list[str]:
    """Returns what the trace hides: constants as they were meant, numbers behind bits."""
    sentences = []
    if not figures.is_traced_wide and figures.run.matmul_precision is None:
        sentences.append(
            "It does not trace with float32 arguments, so its constants count as they are."
        )
    # Without an error the headline has it.
    if figures.error:
        sentences.extend(narrowing_sentences(figures.narrowed))
    return sentences
