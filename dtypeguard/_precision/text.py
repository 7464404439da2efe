"""A report of precision as text: what is off, what helps, the lines, what is not seen."""

import math
from collections.abc import Iterator, Sequence

import jax.numpy as jnp

from .._leaves.table import columns, percent
from .._numbers.formats import products_text
from .._reference.difference import details_of, headline_of
from .._source.origin import Origin, place_of
from .figures import Figures
from .rows import STOCHASTICALLY, few_of, place_or_inside_jax

# From this share of its elements on, an update that does not move them comes first.
_LEAST_STUCK = 0.1
# XLA leaves out roundings. From this part of the error on, that is said.
_NOTABLE_DIFFERENCE = 0.1
# XLA may round the wide numbers differently as well, by so many units in their last place.
_ROUNDINGS_OF_XLA = 8
_NO_PRODUCTS = (
    "the outputs are the same: there are no float32 products, or each asks for another "
    "precision, or has a vector as an operand, or is of numbers that rounding keeps"
)
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
    if _is_beside_rounding(figures):
        return [headline, *compared]
    headline += _answer(figures)
    if figures.unknown:
        constants = few_of(figures.unknown)
        headline += f" Constants of 16 bits that may have been other numbers: {constants}."
    return [
        headline,
        *compared,
        *_indented([*_loss_rows(figures), *_decision_rows(figures)]),
        *_remedies(figures),
        *_costs(figures),
        *_notes(figures),
    ]


def headline_text(figures: Figures) -> str:
    """Returns what is off; first what makes all else beside the point."""
    facts = []
    for rows in (figures.rounded, figures.integers, figures.narrowed):
        # The first row is enough: the others may follow from it.
        facts.extend(map(str, rows[:1]))
    sentences = []
    if figures.differences:
        sentences.append(headline_of(figures.differences))
    if not _is_beside_rounding(figures):
        # The error of one step hardly shows an update that is lost.
        sentences.extend(_lost_updates(figures))
        sentences.append(_error_text(figures))
    # A fact begins with the name of an argument or a file, whose letters stay. Else the
    # first sentence goes on after `precision:`, and starts with a small letter.
    text = " ".join(facts)
    for sentence in sentences:
        if text:
            sentence = f" {sentence[:1].upper()}{sentence[1:]}"
        text += sentence
    return text


def _is_beside_rounding(figures: Figures) -> bool:
    """Returns whether the answer on a reference is no matter of lines in narrow dtypes."""
    verdicts = {difference.verdict for difference in figures.differences}
    return "differs" in verdicts or bool(verdicts and figures.run.wide == "float64")


def _indented(rows: Sequence[str]) -> list[str]:
    return [f"  {row}" for row in rows]


# How far off the outputs are


def _lost_updates(figures: Figures) -> list[str]:
    """Returns the sentence on the update of which rounding takes most away."""
    most = _LEAST_STUCK
    sentences = []
    for path, output in figures.outputs.items():
        share = output.unmoved or 0.0
        if share > most and not output.vanishes:
            most = share
            sentences = [
                f"Rounding takes the update away in {percent(share)} of the elements of "
                f"{path or 'the output'}: keep it in {figures.run.wide}, or write "
                f"{STOCHASTICALLY}."
            ]
    return sentences


def _error_text(figures: Figures) -> str:
    """Returns the sentence on how far off the outputs are."""
    run = figures.run
    error = figures.error
    if math.isnan(error):
        return f"{_wide_work_text(figures)} Nothing was run."
    text = f"the outputs are {percent(error)} off"
    if run.raises:
        text = f"the program raises, and does not in {run.wide}"
    elif math.isinf(error):
        text = f"the outputs are not finite, and are in {run.wide}"
        if figures.not_finite is not None:
            text += f": {figures.not_finite.place} is the first that is not"
    elif not error:
        text = f"the outputs are those of {run.wide}"
        if run.matmul_precision is not None:
            text = _NO_PRODUCTS
    elif run.is_of_integers:
        text = f"{percent(error)} of the elements of the outputs differ"
    if run.matmul_precision is not None:
        text = f"{products_text(run.matmul_precision)} {text}"
    elif run.narrow is not None:
        text = f"in {run.narrow} {text}"
    # What operations give one by one is not what a user runs.
    roundings = _ROUNDINGS_OF_XLA * jnp.finfo(run.wide).eps
    if abs(run.compiled - error) > max(_NOTABLE_DIFFERENCE * error, roundings):
        text += f" ({percent(run.compiled)} off as XLA compiles it here)"
    if figures.scaling is not None:
        text += f", since {figures.scaling}"
    if figures.unexamined and math.isfinite(error):
        text += f", but for what was not examined: {few_of(figures.unexamined)}"
    return f"{text}."


def _wide_work_text(figures: Figures) -> str:
    """Returns how much of the products runs wide."""
    work = figures.work
    if not work.flops:
        return "there are no matrix products to count."
    share = percent(work.wide)
    return f"{share} of the operations of matrix products run wider than {work.narrow}."


def _answer(figures: Figures) -> str:
    """Returns, after a space, what the fix, the plan or a scaled loss does."""
    run = figures.run
    tolerance = run.tolerance
    # Not of an error that is not a number.
    if not figures.error > 0:
        return ""
    # What else there is would be advice that nobody needs.
    if tolerance is not None and figures.error <= tolerance:
        return f" That is within your {percent(tolerance)}."
    error = figures.fixed.error
    price = ""
    if figures.search is not None:
        remedy = "By the plan below"
    elif figures.fix:
        count = len(figures.fix)
        lines = figures.fix[0].place if count == 1 else f"these {count} lines"
        remedy = f"With {lines}"
        if run.matmul_precision is not None:
            remedy += " at a higher precision"
        else:
            remedy += f" in {run.wide}"
            if figures.fixed.price > _MOST:
                share = percent(figures.fixed.price)
                price = f", but then {share} of the matrix products become {run.wide}"
    elif figures.scaling is not None:
        remedy = "With the loss scaled"
        error = figures.scaling.error
    # It would be a claim about lines that were not measured.
    elif figures.unreached is None:
        return " No line helps."
    else:
        return ""
    text = f" {remedy} it is {percent(error)}{price}"
    if tolerance is not None:
        within = "within" if error <= tolerance else "not within"
        text += f", {within} your {percent(tolerance)}"
    return f"{text}."


# The lines


def _share_text(share: float) -> str:
    """Returns a share of an error; nothing for one that was not measured."""
    if math.isnan(share):
        return ""
    if share < -_NOISE:
        return "cancels"
    return percent(max(share, 0.0))


def _code_text(origin: Origin | None) -> str:
    return "" if origin is None else origin.users.code


def _loss_rows(figures: Figures) -> list[str]:
    """Returns the table of losses."""
    if not figures.losses:
        return []
    table = [("part of error", "off alone", "left if wide", "line", "rounds to", "", "")]
    for loss in figures.losses:
        table.append(
            (
                _share_text(loss.share),
                _share_text(loss.alone),
                _share_text(loss.left),
                loss.place,
                ", ".join(loss.dtypes),
                loss.constant or "",
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
    return [f"costs: {_wide_work_text(figures)}", *rows]


# What to write, and what else is to be known


def _remedies(figures: Figures) -> Iterator[str]:
    """Yields by what to scale the loss, and the plan, or what to write for the fix."""
    wide = figures.run.wide
    scaling = figures.scaling
    if scaling is not None:
        yield (
            f"Multiply the loss by {scaling.scale:.8g}, and divide the gradients by it in "
            f"{wide}: {percent(scaling.error)} off. Or keep the params in {wide}."
        )
    if figures.search is None:
        # Lines of one call have the same remedy.
        yield from {loss.remedy: None for loss in figures.fix}
    else:
        yield f"For dtypeguard.autocast, a {figures.search.headline}"
        yield from _indented(figures.search.rows())


def _notes(figures: Figures) -> Iterator[str]:
    """Yields the lines not measured, the worst outputs, and what is not seen."""
    if figures.unreached is not None:
        yield str(figures.unreached)
    counted = []
    vanishing = []
    worst_first = sorted(
        figures.outputs.items(), key=lambda item: item[1].error, reverse=True
    )
    for path, output in worst_first:
        names = vanishing if output.vanishes else counted
        names.append(f"{path or 'the output'} ({percent(output.error)})")
    if len(counted) >= _MANY_OUTPUTS and figures.error:
        yield f"Furthest off of {len(counted)} outputs: {few_of(counted)}."
    if vanishing:
        yield (
            f"0 but for rounding, in {figures.run.wide} as well, or made of such values, "
            f"and counted only if there are no others: {few_of(vanishing)}."
        )
    if not figures.is_traced_wide and figures.run.matmul_precision is None:
        yield (
            "It does not trace with float32 arguments, so its constants count as they are."
        )
