"""The first sentences of a report of precision: how far off, by what, and what helps."""

import math
from collections.abc import Callable, Sequence

from .._leaves.rows import percent
from .._reference.difference import headline_of
from .._source.origin import place_of
from .costs_told import headline_of_costs
from .findings import Findings
from .loss import STOCHASTICALLY

# From this share of the squared error on, it is decisions that matter.
_MOSTLY = 0.5
# What leaves less than this part of the squared error helps.
HALF = 0.5
# XLA leaves out roundings. From this part of the error on, that is said.
_MUCH = 0.1
# The share of what lines explain from which on those of a fix are its cause.
_MOST_OF_IT = 0.5
# From this share of the products on, what a fix makes of them is in the first sentence.
_EXPENSIVE = 0.5
# From this share of its elements on, an update that is lost is the first thing to tell.
_MOST_STUCK = 0.5
# Errors up to this ratio are about the same.
_ABOUT = 1.25
# The part of the squared error from which on one output or line hides the others.
NEARLY_ALL = 0.9


def headline(report: Findings) -> str:
    """How it went: in one sentence, and in one before it on a reference or on updates."""
    if report.differences and is_beside_rounding(report):
        return headline_of(report.differences)
    first = [headline_of(report.differences)] if report.differences else []
    first += updates(report) if is_stuck(report) else []
    own = next(says(report) for applies, says in _CASES if applies(report))
    return " ".join([*first, own[:1].upper() + own[1:] if first else own])


def is_beside_rounding(report: Findings) -> bool:
    """Whether the answer on a reference is no matter of lines in narrow dtypes."""
    verdicts = {each.verdict for each in report.differences}
    return "differs" in verdicts or (bool(verdicts) and report.wide == "float64")


def is_decided(report: Findings) -> bool:
    """Whether decisions that flipped cause most of the error."""
    return report.flipped > _MOSTLY


def is_rounded_once(report: Findings) -> bool:
    """Whether the error is about that of rounding the outputs of wide types once."""
    return 0 < report.once < math.inf and report.error <= _ABOUT * report.once


def is_stuck(report: Findings) -> bool:
    """Whether rounding takes most of an update away."""
    return max(report.unmoved.values(), default=0.0) > _MOST_STUCK


def all_vanish(report: Findings) -> bool:
    """Whether no output has a value; then all of them count."""
    return bool(report.vanishing) and {*report.vanishing} == {*report.outputs}


def makes_all_wide(report: Findings) -> bool:
    """Whether the fix helps since nearly all that comes after is wide as well."""
    is_all = report.price > _EXPENSIVE and report.keeps and report.tolerance is None
    return is_all and not _is_cause(report)


def _is_cause(report: Findings) -> bool:
    """Whether the lines of the fix lose most of the precision themselves.

    A line may help because what it makes is wide from there on.
    """
    explained = report.explained
    if explained is None or report.tolerance is not None:
        return True
    alone = max((loss.alone for loss in report.fix), default=0.0)
    is_most = sum(loss.share for loss in report.fix) > _MOST_OF_IT * explained
    return is_most or alone > NEARLY_ALL * report.error


def _none(report: Findings) -> str:
    so_far = ", as far as they were examined" * bool(report.not_examined)
    return f"the outputs are those of {report.wide}{so_far}."


def _not_finite(report: Findings) -> str:
    how, first = report.setting.words.setting or "as written", report.not_finite
    text = f"the outputs are not finite {how}, and are in {report.wide}{_range(report)}"
    return f"{text}: {first.place} is the first that is not." if first else f"{text}."


def _within(report: Findings) -> str:
    return f"{_off(report)}, within {percent(report.tolerance or 0.0)}."


def _by_decisions(report: Findings) -> str:
    off = f"{_off(report)}: {percent(report.flipped)} of the squared error is decisions"
    return f"{off}." if report.fix else f"{off}, and no line helps."


def _spread(report: Findings) -> str:
    dtypes = sorted({d for loss in report.losses for d in loss.dtypes})
    off = f"{_off(report)}. That is the cost of {' and '.join(dtypes)}"
    if is_rounded_once(report):
        return f"{off}: rounding the outputs once gives {percent(report.once)}."
    return f"{off}: the error is spread over {len(report.fix)} lines, and none stands out."


def _no_fix(report: Findings) -> str:
    is_open = bool(report.losses) and report.loss_scale is None
    helps = any(loss.left < HALF for loss in report.losses)  # at a price
    where = f" but where all becomes {report.setting.words.become}" * helps
    return f"{_off(report)}{f', and no line helps{where}' * is_open}."


def _caused(report: Findings) -> str:
    count = len(report.fix)
    lines = "one line" if count == 1 else f"{count} lines"
    causes = f", and {lines} of {report.lines} {'causes' if count == 1 else 'cause'} it"
    return f"{_off(report)}{causes * _is_cause(report)}."


# What is said of the outputs: that of the first row which applies.
_CASES: Sequence[tuple[Callable[[Findings], bool], Callable[[Findings], str]]] = (
    (
        lambda report: math.isnan(report.error),
        lambda report: f"{headline_of_costs(report)} Nothing was run.",
    ),
    (
        all_vanish,
        lambda report: f"the outputs are 0 but for rounding, in {report.wide} as well.",
    ),
    (lambda report: not report.error, _none),
    (lambda report: math.isinf(report.error), _not_finite),
    (lambda report: report.error <= (report.tolerance or 0.0), _within),
    (is_decided, _by_decisions),
    (lambda report: report.is_spread, _spread),
    (lambda report: not report.fix, _no_fix),
    (lambda report: True, _caused),
)


def _off(report: Findings) -> str:
    """How far off the outputs are."""
    least, most = report.error_range or (report.error, report.error)
    setting, error = report.setting.words.setting, percent(report.error)
    if report.error_range:
        error = f"{percent(least)} to {percent(most)}"
    off = f"{setting} the outputs are {error} off".strip()
    if report.is_of_integers:
        off = f"{setting} {error} of the elements of the outputs differ".strip()
    off += ", by inputs that differ by a rounding" * bool(report.error_range)
    more = _MUCH * report.error
    if report.compiled < least - more or report.compiled > most + more:
        off += f" ({percent(report.compiled)} as XLA compiles it here)"
    return off + _range(report)


def _range(report: Findings) -> str:
    """What happens where the range of a dtype is too small."""
    scaled = report.by_line.scaled
    if scaled is None:
        return ""
    if scaled.scale < 1:
        return f", since gradients overflow {scaled.dtype}"
    lost = f"{percent(report.lost)} of their numbers are 0, and not in {report.wide}"
    return f", since gradients underflow {scaled.dtype}: {lost}"


def answer(report: Findings) -> list[str]:
    """What the lines of the fix do, against the tolerance if there is one."""
    if report.loss_scale is not None and not report.fix:
        return [f"With the loss scaled it is {percent(report.scaled)}."]
    is_open = report.is_spread and report.tolerance is None
    if all_vanish(report) or not report.fix or is_open:
        return []
    count, words = len(report.fix), report.setting.words
    lines = "one line" if count == 1 else f"{count} lines"
    is_named = not (is_decided(report) or report.is_spread) and _is_cause(report)
    first = report.not_finite  # which the fix may stand before
    is_named &= first is None or report.fix[0].place == place_of(first)
    if is_named:  # by the first sentence
        lines = "it" if count == 1 else f"these {lines}"
    elif count == 1:
        lines = report.fix[0].place
    begin = f"With {lines} {words.widened} it is {percent(report.mended)}"
    if report.price > _EXPENSIVE:
        and_so = ", but so" if makes_all_wide(report) else ", and"
        begin += f"{and_so} {percent(report.price)} of the matrix products become "
        begin += words.become
    if report.tolerance is None:
        return [f"{begin}."]
    allowed = f"your {percent(report.tolerance)}"
    if report.mended <= report.tolerance:
        return [f"{begin}, within {allowed}."]
    return [f"{begin}: no choice of lines reaches {allowed}."]


def updates(report: Findings) -> list[str]:
    """What rounding does to updates, which the error of one step hardly shows."""
    if report.is_of_gradients and report.error:
        told = (
            "What rounding does to the update is not in it: audit the step that adds "
            "these gradients to the params."
        )
        if not is_rounded_once(report) or report.fix:
            return [told]
        return [
            "The gradients are rounded to the dtype of their weights: "
            f"differentiate with respect to w.astype(jnp.{report.wide}). {told}"
        ]
    stuck = {path: share for path, share in report.unmoved.items() if share > 0.01}
    if not stuck:
        return []
    most = max(stuck, key=stuck.__getitem__)
    also = f", and in {len(stuck) - 1} more" * (len(stuck) > 1)
    return [
        f"Rounding takes the update away in {percent(stuck[most])} of the elements of "
        f"{most or 'the output'}{also}: keep it in {report.wide}, or write "
        f"{STOCHASTICALLY}."
    ]
