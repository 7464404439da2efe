"""The first sentences of a report: how far off the outputs are, or what is wrong before."""

import math
from collections.abc import Sequence

import numpy as np

from .._leaves.table import percent
from .._numbers.formats import products_named
from .._reference.difference import headline_of
from .._source.origin import Origin, place_of
from .figures import Figures
from .rows import KEEP_WIDE, STOCHASTICALLY, IntegerMisfit, NarrowedBits, told_of_argument

# From this share of the squared error, or of the products, on, it is most of it.
MOST = 0.5
# An update that loses no more than this share of its elements is no news.
_LEAST_STUCK = 0.01
# XLA leaves out roundings. From this part of the error on, that is said.
_NOTABLE_DIFFERENCE = 0.1
# XLA may round the wide numbers differently as well, by so many units in their last place.
_ROUNDINGS_OF_XLA = 8
# Numbers below this are printed with all digits: they are noted in float32.
_EXACT = 1e7
_MOST_NAMED = 3


def headline_text(figures: Figures) -> str:
    """Returns what is off; first what makes all else beside the point."""
    sentences: list[str] = []
    if figures.rounded:
        sentences.append(f"{told_of_argument(figures.rounded[0])} {KEEP_WIDE}")
    if figures.integers:
        sentences.append(_misfit_text(figures.integers[0], figures.run.wide))
    if figures.differences:
        sentences.append(headline_of(figures.differences))
    if not is_beside_rounding(figures):
        if is_stuck(figures):
            sentences.extend(update_sentences(figures))
        sentences.extend(_error_sentences(figures))
    first, *rest = sentences
    # The first one goes on after `precision:`, so it starts with a small letter.
    capitalized = [text[:1].upper() + text[1:] for text in rest]
    return " ".join([first, *capitalized])


def is_beside_rounding(figures: Figures) -> bool:
    """Returns whether the answer on a reference is no matter of lines in narrow dtypes."""
    verdicts = {difference.verdict for difference in figures.differences}
    if "differs" in verdicts:
        return True
    return bool(verdicts) and figures.run.wide == "float64"


def _error_sentences(figures: Figures) -> list[str]:
    if math.isnan(figures.error):
        return [f"{wide_work_text(figures)} Nothing was run."]
    if math.isinf(figures.error):
        return [_not_finite_text(figures)]
    if figures.error:
        return [_off_text(figures)]
    return [*narrowing_sentences(figures.narrowed), _no_error_text(figures)]


def _misfit_text(row: IntegerMisfit, wide: str) -> str:
    """Returns the sentence on a line whose integers do not fit their dtype."""
    info = np.iinfo(row.dtype)
    end = info.min if row.value < info.min else info.max
    reason = f"and {row.dtype} ends at {end:,}"
    if math.isnan(row.value):
        value = "NaN"
        reason = f"which {row.dtype} has not"
    elif abs(row.value) < _EXACT:
        value = f"{row.value:,.0f}"
    else:
        value = f"{row.value:.4g}"
    place = place_or_inside_jax(row.origin)
    return (
        f"{place} makes {value}, {reason}: {row.count:,} of {row.size:,} "
        f"numbers there do not fit, in the run in {wide} as well."
    )


def place_or_inside_jax(origin: Origin | None) -> str:
    """Returns where a line is."""
    return "a line inside JAX" if origin is None else place_of(origin)


def narrowing_sentences(rows: Sequence[NarrowedBits]) -> list[str]:
    """Returns a sentence for each line that narrows what becomes bits or integers."""
    sentences: list[str] = []
    for row in rows[:_MOST_NAMED]:
        place = place_or_inside_jax(row.origin)
        sentences.append(
            f"{place} narrows {row.before} to {row.after} on the way to "
            f"bits, a key or an integer: {row.equal:,} of {row.different:,} different "
            "numbers become equal."
        )
    return sentences


def _setting(figures: Figures) -> str:
    """Returns how the program was run; nothing if as written."""
    if figures.run.matmul_precision is not None:
        return products_named(figures.run.matmul_precision).begin
    if figures.run.narrow is not None:
        return f"in {figures.run.narrow}"
    return ""


def _no_error_text(figures: Figures) -> str:
    run = figures.run
    if run.matmul_precision is not None:
        return (
            f"{_setting(figures)} the outputs are the same: there are no float32 products, "
            "or each asks for another precision, or has a vector as an operand, or is of "
            "numbers that rounding keeps."
        )
    text = f"the outputs are those of {run.wide}"
    # What operations give one by one is not what a user runs.
    if run.compiled > _ROUNDINGS_OF_XLA * np.finfo(run.wide).eps:
        text += f" op by op, and {percent(run.compiled)} off as XLA compiles it here"
    if figures.unexamined:
        places = few_of([row.place for row in figures.unexamined])
        text += f", but for what was not examined: {places}"
    return f"{text}."


def _not_finite_text(figures: Figures) -> str:
    setting = _setting(figures) or "as written"
    wide = figures.run.wide
    if figures.run.raises:
        return f"the program raises {setting}, and does not in {wide}."
    text = f"the outputs are not finite {setting}, and are in {wide}{_range_text(figures)}"
    if figures.not_finite is None:
        return f"{text}."
    return f"{text}: {figures.not_finite.place} is the first that is not."


def _off_text(figures: Figures) -> str:
    error = percent(figures.error)
    text = f"the outputs are {error} off"
    if figures.run.is_of_integers:
        text = f"{error} of the elements of the outputs differ"
    text = f"{_setting(figures)} {text}".strip()
    compiled = figures.run.compiled
    if abs(compiled - figures.error) > _NOTABLE_DIFFERENCE * figures.error:
        text += f" ({percent(compiled)} as XLA compiles it here)"
    return f"{text}{_range_text(figures)}."


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
    if work is None or not work.flops:
        return "there are no matrix products to count."
    if not work.wide:
        return f"no matrix product runs wider than {work.narrow}."
    share = percent(work.wide)
    return f"{share} of the operations of matrix products run wider than {work.narrow}."


# Updates that rounding takes away


def _lost_shares(figures: Figures) -> dict[str, float]:
    """Returns the share of each update that rounding takes away, where that is news."""
    shares: dict[str, float] = {}
    for path, output in figures.outputs.items():
        share = output.unmoved or 0.0
        if share > _LEAST_STUCK and not output.vanishes:
            shares[path] = share
    return shares


def is_stuck(figures: Figures) -> bool:
    """Returns whether rounding takes most of an update away, which is said first then."""
    return max(_lost_shares(figures).values(), default=0.0) > MOST


def update_sentences(figures: Figures) -> list[str]:
    """Returns the sentence on the update that rounding takes away, if there is one."""
    # The error of one step hardly shows it.
    shares = _lost_shares(figures)
    if not shares:
        return []
    path = max(shares, key=lambda path: shares[path])
    share = shares[path]
    also = ""
    if len(shares) > 1:
        also = f", and in {len(shares) - 1} more"
    return [
        f"Rounding takes the update away in {percent(share)} of the elements of "
        f"{path or 'the output'}{also}: keep it in {figures.run.wide}, or write "
        f"{STOCHASTICALLY}."
    ]


def few_of(names: Sequence[str]) -> str:
    """Returns the first of some names, and how many more there are."""
    text = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return text if more <= 0 else f"{text} and {more} more"
