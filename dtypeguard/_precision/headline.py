"""The first sentences of a report: how far off the outputs are, or what is wrong before."""

import math
from collections.abc import Iterator, Sequence

import jax.numpy as jnp

from .._leaves.table import percent
from .._numbers.formats import products_named
from .._reference.difference import headline_of
from .figures import Figures
from .rows import (
    KEEP_WIDE,
    STOCHASTICALLY,
    IntegerMisfit,
    NarrowedBits,
    place_or_inside_jax,
    told_of_argument,
)

# From this share of its elements on, an update that does not move them comes first.
_LEAST_STUCK = 0.1
# XLA leaves out roundings. From this part of the error on, that is said.
_NOTABLE_DIFFERENCE = 0.1
# XLA may round the wide numbers differently as well, by so many units in their last place.
_ROUNDINGS_OF_XLA = 8
_MOST_NAMED = 3


def headline_text(figures: Figures) -> str:
    """Returns what is off; first what makes all else beside the point."""
    sentences = []
    if figures.rounded:
        sentences.append(f"{told_of_argument(figures.rounded[0])} {KEEP_WIDE}")
    if figures.integers:
        sentences.append(_misfit_text(figures.integers[0], figures.run.wide))
    if figures.differences:
        sentences.append(headline_of(figures.differences))
    if not is_beside_rounding(figures):
        # The error of one step hardly shows an update that is lost.
        sentences.extend(_lost_updates(figures))
        if not figures.error:
            sentences.extend(narrowing_sentences(figures.narrowed))
        sentences.append(_error_text(figures))
    # The first one goes on after `precision:`, so it starts with a small letter.
    text = sentences[0]
    for sentence in sentences[1:]:
        text += f" {sentence[:1].upper()}{sentence[1:]}"
    return text


def is_beside_rounding(figures: Figures) -> bool:
    """Returns whether the answer on a reference is no matter of lines in narrow dtypes."""
    verdicts = {difference.verdict for difference in figures.differences}
    if "differs" in verdicts:
        return True
    return bool(verdicts) and figures.run.wide == "float64"


def _misfit_text(row: IntegerMisfit, wide: str) -> str:
    """Returns the sentence on a line whose integers do not fit their dtype."""
    info = jnp.iinfo(row.dtype)
    # Not a number is below no end: the upper one is told.
    end = info.min if row.value < info.min else info.max
    return (
        f"{place_or_inside_jax(row.origin)} makes {row.value:,.7g}, "
        f"and {row.dtype} ends at {end:,}: "
        f"{row.count:,} of {row.size:,} numbers there do not fit, "
        f"in the run in {wide} as well."
    )


def narrowing_sentences(rows: Sequence[NarrowedBits]) -> Iterator[str]:
    """Yields a sentence on the first line that narrows what becomes bits or integers."""
    for row in rows[:1]:
        yield (
            f"{place_or_inside_jax(row.origin)} narrows {row.before} to {row.after} on the "
            f"way to bits, a key or an integer: {row.equal:,} of {row.different:,} "
            "different numbers become equal."
        )


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
        return f"{wide_work_text(figures)} Nothing was run."
    if math.isinf(error):
        return _not_finite_text(figures)
    text = f"the outputs are those of {run.wide}"
    if error and run.is_of_integers:
        text = f"{percent(error)} of the elements of the outputs differ"
    elif error:
        text = f"the outputs are {percent(error)} off"
    elif run.matmul_precision is not None:
        text = (
            "the outputs are the same: there are no float32 products, or each asks for "
            "another precision, or has a vector as an operand, or is of numbers that "
            "rounding keeps"
        )
    setting = _setting(figures)
    if setting:
        text = f"{setting} {text}"
    # What operations give one by one is not what a user runs.
    roundings = _ROUNDINGS_OF_XLA * jnp.finfo(run.wide).eps
    if abs(run.compiled - error) > max(_NOTABLE_DIFFERENCE * error, roundings):
        text += f" ({percent(run.compiled)} off as XLA compiles it here)"
    text += _range_text(figures)
    if figures.unexamined:
        text += ", but for what was not examined: "
        text += few_of([row.place for row in figures.unexamined])
    return f"{text}."


def _setting(figures: Figures) -> str:
    """Returns how the program was run; nothing if as written."""
    if figures.run.matmul_precision is not None:
        return products_named(figures.run.matmul_precision).begin
    if figures.run.narrow is not None:
        return f"in {figures.run.narrow}"
    return ""


def _not_finite_text(figures: Figures) -> str:
    setting = _setting(figures) or "as written"
    if figures.run.raises:
        return f"the program raises {setting}, and does not in {figures.run.wide}."
    text = (
        f"the outputs are not finite {setting}, and are in {figures.run.wide}"
        f"{_range_text(figures)}"
    )
    if figures.not_finite is None:
        return f"{text}."
    return f"{text}: {figures.not_finite.place} is the first that is not."


def _range_text(figures: Figures) -> str:
    """Returns what happens where the range of a dtype is too small."""
    scaling = figures.scaling
    if scaling is None:
        return ""
    if scaling.scale < 1:
        return f", since gradients overflow {scaling.dtype}"
    return (
        f", since gradients underflow {scaling.dtype}: {percent(scaling.lost)} of their "
        f"numbers are 0, and not in {figures.run.wide}"
    )


def wide_work_text(figures: Figures) -> str:
    """Returns how much of the products runs wide."""
    work = figures.work
    if not work.flops:
        return "there are no matrix products to count."
    # 0% is also what little rounds to.
    share = percent(work.wide) if work.wide else "no part"
    return f"{share} of the operations of matrix products run wider than {work.narrow}."


def few_of(names: Sequence[str]) -> str:
    """Returns the first of some names, and how many more there are."""
    text = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    if more > 0:
        text += f" and {more} more"
    return text
