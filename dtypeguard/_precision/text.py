"""A report of precision as text: what is off, what helps, the lines, what is not seen."""

import math
from collections.abc import Sequence

import numpy as np

from .._leaves.table import columns, percent
from .._reference.difference import details_of
from .._source.origin import Origin, place_of
from .figures import Figures
from .headline import (
    MOST,
    few_of,
    headline_text,
    is_beside_rounding,
    is_stuck,
    narrowing_sentences,
    place_or_inside_jax,
    update_sentences,
    wide_work_text,
)
from .rows import IntegerMisfit, OutputError, UnknownConstant

# An error is spread where so many lines are to be wide, and the first, and the first three,
# have less than these shares of it.
_MANY_LINES = 3
_LEAST_OF_FIRST = 0.5
_LEAST_OF_THREE = 0.75
# How many rows tables have.
_MOST_DECISIONS = 5
# From so many outputs on it is said which are furthest off.
_MANY_OUTPUTS = 3


def report_lines(figures: Figures) -> list[str]:
    """Returns the report; if the reference computes otherwise, the comparison alone."""
    compared = details_of(figures.differences, figures.divergence)
    sentences = [f"precision: {headline_text(figures)}"]
    if is_beside_rounding(figures):
        return [*sentences, *compared]
    answer = _answer(figures)
    if answer:
        sentences.append(answer)
    if figures.unknown:
        names = [_text_of_constant(row) for row in figures.unknown]
        text = few_of(names)
        sentences.append(f"Constants of 16 bits that may have been other numbers: {text}.")
    return [
        " ".join(sentences),
        *compared,
        *_indented([*loss_rows(figures), *decision_rows(figures)]),
        *advice(figures),
        *_costs(figures),
        *notes(figures),
    ]


def _text_of_constant(row: UnknownConstant) -> str:
    where = place_or_inside_jax(row.origin)
    return f"{row.value:.6g} (within {row.within:.1g}, {where})"


# The answer: what computing the lines of the fix wide does


def _answer(figures: Figures) -> str:
    """Returns what the fix does; nothing where there is nothing to fix."""
    tolerance = figures.run.tolerance
    if math.isnan(figures.error) or not figures.error:
        return ""
    if figures.scaling is not None and not figures.fix:
        return f"With the loss scaled it is {percent(figures.scaling.error)}."
    # Nothing to fix: what follows would be advice that nobody needs.
    if tolerance is not None and figures.error <= tolerance:
        return f"That is within your {percent(tolerance)}."
    # A plan may keep a part of a line wide, and lines that were not measured.
    if figures.search is not None:
        within = "within" if figures.search.is_within else "not within"
        error = percent(figures.fixed.error)
        return f"By the plan below it is {error}, {within} {percent(tolerance or 0.0)}."
    if tolerance is None and _is_spread(figures):
        return f"It is spread over {len(figures.fix)} lines, and none stands out."
    if figures.fix:
        return _fix_text(figures)
    # "No line helps" would be a claim about lines that were not measured.
    if figures.unreached is not None:
        return ""
    if figures.decisions.share > MOST:
        share = percent(figures.decisions.share)
        return f"{share} of the squared error is decisions; no line helps."
    return "No line helps."


def _is_spread(figures: Figures) -> bool:
    """Returns whether many lines have the error, and not even a few stand out."""
    if len(figures.fix) <= _MANY_LINES:
        return False
    shares = sorted((loss.share for loss in figures.losses), reverse=True)
    return shares[0] < _LEAST_OF_FIRST and sum(shares[:3]) < _LEAST_OF_THREE


def _fix_text(figures: Figures) -> str:
    """Returns what the fix leaves, and whether that is small enough."""
    count = len(figures.fix)
    lines = f"these {count} lines"
    if count == 1:
        # A cast of dtypeguard has its path behind the place.
        lines, _, _ = figures.fix[0].place.partition(",")
    run = figures.run
    wide = run.wide
    is_own = run.matmul_precision is None
    dtype = f"in {wide}" if is_own else "at a higher precision"
    error = figures.fixed.error
    text = f"With {lines} {dtype} it is {percent(error)}"
    if figures.fixed.price > MOST and is_own:
        but = ", but then" if makes_all_wide(figures) else ", and"
        price = percent(figures.fixed.price)
        text += f"{but} {price} of the matrix products become {wide}"
    if run.tolerance is None:
        return f"{text}."
    if error <= run.tolerance:
        return f"{text}, within your {percent(run.tolerance)}."
    return f"{text}: no choice of lines reaches your {percent(run.tolerance)}."


def makes_all_wide(figures: Figures) -> bool:
    """Returns whether the fix helps since nearly all that comes after is wide as well."""
    run = figures.run
    if run.tolerance is not None or run.matmul_precision is not None:  # it was asked for
        return False
    share = sum(loss.share for loss in figures.fix)
    is_cause = share > MOST * (1 - figures.decisions.share)
    return figures.fixed.price > MOST and not is_cause


# The lines


def _indented(rows: Sequence[str]) -> list[str]:
    return [f"  {row}" for row in rows]


def loss_rows(figures: Figures) -> list[str]:
    """Returns the table of losses."""
    if not figures.losses:
        return []
    heads = ("part of error", "off alone", "left if wide", "line", "rounds to", "")
    table: list[Sequence[str]] = [heads]
    # Beside decisions, parts are those of what rounding alone causes.
    decided = figures.decisions.share
    by_rounding = 1 - decided if MOST < decided < 1 else 1.0
    for loss in figures.losses:
        part = loss.share / by_rounding
        # Just below 0 is noise of a share, and would print as "-0%".
        part_text = f"{100 * max(part, 0):.0f}%"
        if part < -0.01:
            part_text = "cancels"
        if_wide = "" if math.isnan(loss.left) else percent(loss.left)
        rounds_to = ", ".join(loss.dtypes)
        if loss.constant:
            rounds_to = f"{rounds_to}; {loss.constant}"
        code = loss.origin.code if loss.origin else ""
        alone = "" if math.isnan(loss.alone) else percent(loss.alone)
        table.append((part_text, alone, if_wide, loss.place, rounds_to, code))
    return columns(table)


def decision_rows(figures: Figures) -> list[str]:
    """Returns what decisions that flipped cause, and where."""
    decisions = figures.decisions
    if not decisions.lines or not figures.error:
        return []
    text = "decisions that flipped"
    if not figures.run.is_of_integers and not math.isnan(decisions.share):
        share = "cancels" if decisions.share < 0 else percent(decisions.share)
        text += f": {share}"
    table: list[Sequence[str]] = []
    for row in decisions.lines[:_MOST_DECISIONS]:
        where = place_or_inside_jax(row.origin)
        share = percent(row.flipped / row.count)
        table.append((share, f"of {row.count:,}", where, _code_text(row.origin)))
    return [text, *columns(table)]


def advice(figures: Figures) -> list[str]:
    """Returns what to write for the lines of the fix, and where a loss is to be scaled."""
    sentences: list[str] = []
    if figures.integers:
        sentences.extend(_wider_integers(figures.integers[0]))
    scaling = figures.scaling
    wide = figures.run.wide
    if scaling is not None:
        power = math.log2(scaling.scale)
        scale = f"2**{power:.0f}"
        if power >= 0:
            scale = f"{scaling.scale:.0f}"
        sentences.append(
            f"Multiply the loss by {scale}, and divide the gradients by it in {wide}: "
            f"{percent(scaling.error)} off. Or keep the params in {wide}."
        )
    # The plan has these lines already, in the form that `autocast` reads.
    if figures.search is not None:
        sentences.append(f"For dtypeguard.autocast, a {figures.search.headline}")
        sentences.extend(_indented(figures.search.rows()))
        return sentences
    if _is_spread(figures) or makes_all_wide(figures):
        return sentences
    for loss in figures.fix:
        # Lines of one call have the same remedy.
        if loss.remedy not in sentences:
            sentences.append(loss.remedy)
    return sentences


def _wider_integers(row: IntegerMisfit) -> list[str]:
    """Returns what to write for integers that do not fit."""
    # The cheapest dtype that holds the number; of none there is nothing to advise.
    for name in ("int32", "int64", "uint64"):
        info = np.iinfo(name)
        if info.min <= row.value < info.max:
            needs_x64 = " That needs jax_enable_x64." if info.bits == 64 else ""
            where = place_or_inside_jax(row.origin)
            return [f"Compute the integers of {where} in {name}.{needs_x64}"]
    return []


def _costs(figures: Figures) -> list[str]:
    """Returns the table of what makes products wide."""
    work = figures.work
    # With `narrow`, all is as if it were narrow.
    if work is None or not work.costs or figures.run.narrow is not None:
        return []
    lines: list[str] = []
    if not math.isnan(figures.error):
        lines.append(f"costs: {wide_work_text(figures)}")
    table: list[Sequence[str]] = [("share", "line", "made wide by", "")]
    for cost in work.costs:
        where = "" if cost.origin is None else place_of(cost.origin)
        cause = "itself" if cost.cause == cost.origin else place_of(cost.cause)
        # An input has no code of its own to show.
        code_at = cost.cause if isinstance(cost.cause, Origin) else cost.origin
        table.append((f"{100 * cost.share:.0f}%", where, cause, _code_text(code_at)))
    lines.extend(_indented(columns(table)))
    return lines


def _code_text(origin: Origin | None) -> str:
    return "" if origin is None else origin.users.code


# What else is to be known


def notes(figures: Figures) -> list[str]:
    """Returns what else is to be known, a sentence each."""
    sentences = _unreached(figures)
    if not is_stuck(figures):
        sentences.extend(update_sentences(figures))
    vanishing: list[str] = []
    counted: list[str] = []
    worst_first = sorted(figures.outputs.items(), key=_error_of_output, reverse=True)
    for path, output in worst_first:
        name = f"{path or 'the output'} ({percent(output.error)})"
        if output.vanishes:
            vanishing.append(name)
        else:
            counted.append(name)
    names = counted or vanishing
    if len(names) >= _MANY_OUTPUTS and 0 < figures.error < math.inf:
        worst = ", ".join(names[:_MANY_OUTPUTS])
        sentences.append(f"Furthest off of {len(names)} outputs: {worst}.")
    if vanishing:
        how = "not counted" if counted else "counted, since there are no others"
        sentences.append(
            f"0 but for rounding, in {figures.run.wide} as well, or made of such values, "
            f"and {how}: {few_of(vanishing)}."
        )
    if not figures.is_traced_wide and figures.run.matmul_precision is None:
        sentences.append(
            "It does not trace with float32 arguments, so its constants count as they are."
        )
    if figures.error:
        sentences.extend(narrowing_sentences(figures.narrowed))
        places = [row.place for row in figures.unexamined]
        if places:
            sentences.append(f"Run as written, without a look inside: {few_of(places)}.")
    return sentences


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
    count = "1 line was" if unreached.lines == 1 else f"{unreached.lines} lines were"
    measured = f"{count} not measured"
    if not unreached.lines:
        measured = "all lines were measured"
    elif unreached.explained:
        share = percent(unreached.explained)
        measured += f", and those that were explain {share} of the squared error"
    fix = "The fix may be another one."
    # Lines may have been tried, and the search for a fix not have come to its end.
    if math.isnan(figures.left):
        fix = "No fix was found yet."
    return [f"{end}: {measured}. {fix}{remedy}"]


def _error_of_output(item: tuple[str, OutputError]) -> float:
    _, output = item
    return output.error
