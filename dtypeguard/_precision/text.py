"""A report of precision as text: what is off, what helps, the lines, what is not seen."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from .._leaves.rows import columns, percent
from .._reference.difference import details_of, headline_of
from .._source.origin import Origin, place_of
from .planning import table_of
from .rows import STOCHASTICALLY, LineLoss

# A `PrecisionReport`, which is made of these texts.
Report: TypeAlias = Any

# From this share of the squared error, or of the products, on, it is most of it.
_MOSTLY = 0.5
# XLA leaves out roundings. From this part of the error on, that is said.
_MUCH = 0.1
# Errors up to this ratio are about the same.
_ABOUT = 1.25
# The part of the squared error from which on one output hides the others.
_NEARLY_ALL = 0.9
# Of the tables.
_MOST_DECISIONS, _MOST_LOSSES, _MOST_COSTS = 5, 8, 10
# Of a scope that is shown.
_LONGEST = 40
_NUMBER = re.compile(r"\d+")
# The legends that this process has printed.
LEGENDS = set[str]()


def report(it: Report) -> list[str]:
    """All of it; where a reference differs by another computation, that alone."""
    first = f"precision: {it.headline}"
    if is_beside_rounding(it):
        return [first, *_compared(it)]
    parts = _compared, _table, _legend, advice, _costs, notes
    told = " ".join([first, *_answer(it)])
    return [told, *(line for part in parts for line in part(it))]


# The headline


def headline(it: Report) -> str:
    """Off by so much, does not move, not finite or nothing to gain; first a reference."""
    first = [headline_of(it.differences)] if it.differences else []
    if first and is_beside_rounding(it):
        return first[0]
    stuck = _updates(it) if max(it.unmoved.values(), default=0.0) > _MOSTLY else []
    own = next(says(it) for applies, says in _HEADLINES if applies(it))
    told = [*first, *stuck, own]
    return " ".join([told[0], *(x[:1].upper() + x[1:] for x in told[1:])])


def is_beside_rounding(it: Report) -> bool:
    """Whether the answer on a reference is no matter of lines in narrow dtypes."""
    verdicts = {each.verdict for each in it.differences}
    return "differs" in verdicts or (bool(verdicts) and it.wide == "float64")


def _not_finite(it: Report) -> str:
    how = it.words.setting or "as written"
    if it.raises:
        return f"the program raises {how}, and does not in {it.wide}."
    text = f"the outputs are not finite {how}, and are in {it.wide}{_range(it)}"
    first = it.not_finite
    return f"{text}: {first.place} is the first that is not." if first else f"{text}."


def _off(it: Report) -> str:
    """How far off the outputs are."""
    error = percent(it.error)
    off = f"{it.words.setting} the outputs are {error} off".strip()
    if it.is_of_integers:
        off = f"{it.words.setting} {error} of the elements of the outputs differ".strip()
    if abs(it.compiled - it.error) > _MUCH * it.error:
        off += f" ({percent(it.compiled)} as XLA compiles it here)"
    return f"{off}{_range(it)}."


def _range(it: Report) -> str:
    """What happens where the range of a dtype is too small."""
    if it.scaling is None:
        return ""
    if it.scaling.scale < 1:
        return f", since gradients overflow {it.scaling.dtype}"
    lost = f"{percent(it.lost)} of their numbers are 0, and not in {it.wide}"
    return f", since gradients underflow {it.scaling.dtype}: {lost}"


# What is said of the outputs: that of the first row which applies.
_HEADLINES: Sequence[tuple[Callable[[Report], bool], Callable[[Report], str]]] = (
    (lambda it: math.isnan(it.error), lambda it: f"{_wide_work(it)} Nothing was run."),
    (lambda it: not it.error, lambda it: it.words.nothing),
    (lambda it: math.isinf(it.error), _not_finite),
    (lambda it: True, _off),
)


# The answer


def _answer(it: Report) -> list[str]:
    """What computing the lines of the fix wide does."""
    if math.isnan(it.error) or not it.error:
        return []
    return [next(says(it) for applies, says in _ANSWERS if applies(it))]


def _with_fix(it: Report) -> str:
    count = len(it.fix)
    place = it.fix[0].place.partition(",")[0]  # a cast of dtypeguard has its path behind it
    lines = place if count == 1 else f"these {count} lines"
    begin = f"With {lines} {it.words.widened} it is {percent(it.mended)}"
    if it.price > _MOSTLY:
        but = ", but so" if makes_all_wide(it) else ", and"
        begin += f"{but} {percent(it.price)} of the matrix products become "
        begin += it.words.become
    if it.tolerance is None:
        return f"{begin}."
    if it.mended <= it.tolerance:
        return f"{begin}, within your {percent(it.tolerance)}."
    return f"{begin}: no choice of lines reaches your {percent(it.tolerance)}."


def _no_fix(it: Report) -> str:
    if it.flipped > _MOSTLY:
        return f"{percent(it.flipped)} of the squared error is decisions; no line helps."
    helps = any(loss.left < _MOSTLY for loss in it.losses)  # at a price
    return f"No line helps{f' but where all becomes {it.words.become}' * helps}."


def _by_plan(it: Report) -> str:
    within = "within" if it.search.is_within else "not within"
    return (
        f"By the plan below it is {percent(it.mended)}, {within} {percent(it.tolerance)}."
    )


def _spread(it: Report) -> str:
    if is_rounded_once(it):
        return f"Rounding the outputs once gives {percent(it.once)}."
    return f"It is spread over {len(it.fix)} lines, and none stands out."


def is_rounded_once(it: Report) -> bool:
    """Whether the error is about that of rounding the outputs of wide types once."""
    return 0 < it.once < math.inf and it.error <= _ABOUT * it.once


def makes_all_wide(it: Report) -> bool:
    """Whether the fix helps since nearly all that comes after is wide as well."""
    if not (it.price > _MOSTLY and it.keeps and it.tolerance is None):
        return False
    alone = max((loss.alone for loss in it.fix), default=0.0)
    is_most = sum(x.share for x in it.fix) > _MOSTLY * (it.explained or 0.0)
    return not (it.explained is None or is_most or alone > _NEARLY_ALL * it.error)


_ANSWERS: Sequence[tuple[Callable[[Report], bool], Callable[[Report], str]]] = (
    (
        lambda it: it.scaling is not None and not it.fix,
        lambda it: f"With the loss scaled it is {percent(it.scaled)}.",
    ),
    (
        lambda it: it.error <= (it.tolerance or 0.0),
        lambda it: f"That is within your {percent(it.tolerance)}.",
    ),
    (lambda it: it.is_spread and it.tolerance is None, _spread),
    (lambda it: it.search is not None and not it.fix, _by_plan),
    (lambda it: not it.fix, _no_fix),
    (lambda it: True, _with_fix),
)


# The lines


def _compared(it: Report) -> list[str]:
    """What tells whether the reference is another computation, and where it begins."""
    return details_of(it.differences, it.divergence)


def _table(it: Report) -> list[str]:
    more = len(it.losses) - len(_shown(it))
    left_out = [f"{more} more lines are in to_json()."] * bool(more)
    return [f"  {row}" for row in (*rows(it), *left_out, *decided(it))]


def rows(it: Report) -> list[str]:
    """The table of losses."""
    if not it.losses:
        return []
    table: list[Sequence[str]] = [
        ("share", "alone", "left", "pass", "line", "scope", "rounds to", "")
    ]
    # Beside decisions, shares are those in what rounding alone causes.
    is_part = _MOSTLY < it.flipped < 1
    by_rounding = 1 - it.flipped if is_part else 1.0
    for loss in _shown(it):
        code = loss.origin.code if loss.origin else ""
        dtypes = ", ".join(loss.dtypes) + (f"; {loss.constant}" * bool(loss.constant))
        part = loss.share / by_rounding
        share = "cancels" if part < -0.01 else f"{100 * max(part, 0):.0f}%"
        left = "" if math.isnan(loss.left) else f"{loss.left:.2f}"
        scope = loss.scope
        scope = scope if len(scope) <= _LONGEST else f"...{scope[3 - _LONGEST :]}"
        alone = percent(loss.alone)
        table.append((share, alone, left, loss.of_pass, loss.place, scope, dtypes, code))
    left_out = {3} if not any(loss.backward > 0 for loss in it.losses) else set()
    left_out |= {5} if not any(loss.scope for loss in it.losses) else set()
    return columns([[x for n, x in enumerate(row) if n not in left_out] for row in table])


def _shown(it: Report) -> Sequence[LineLoss]:
    """The losses of the table: where decisions matter, few have a share."""
    if it.flipped <= _MOSTLY:
        return it.losses
    return [x for n, x in enumerate(it.losses) if n < _MOST_LOSSES or x in it.fix]


def decided(it: Report) -> list[str]:
    """What decisions that flipped cause, and where."""
    if not it.decisions and not it.turns_differ:
        return []
    how = "cancels" if it.flipped < 0 else percent(it.flipped)
    text = "decisions that flipped" + f": {how}" * (not it.is_of_integers)
    text += "; a loop turns another number of times" * it.turns_differ
    rows = [
        (
            percent(each.flipped / each.count),
            f"of {each.count:,}",
            "inside JAX" if each.origin is None else place_of(each.origin),
            _code_of(each.origin),
        )
        for each in it.decisions[:_MOST_DECISIONS]
    ]
    return [text, *columns(rows)]


def _legend(it: Report) -> list[str]:
    """What the columns are, on the first report of a process that has them."""
    off = f"how far the outputs are from {it.words.beside}, relative to their size"
    if it.is_of_integers:
        off = f"how many elements differ from {it.words.beside}"
    less = ", decisions apart" * (it.flipped > _MOSTLY)
    text = (
        f"Off: {off}. share: this line's part of the squared error{less}; alone: off if "
        "only this line rounds; left: the part of the squared error that remains with "
        f"only this line {it.words.widened}."
    )
    is_new = bool(it.losses) and text not in LEGENDS
    LEGENDS.update([text] * is_new)
    return [text] * is_new


def advice(it: Report) -> list[str]:
    """What to write for each line of the fix, and where a loss is to be scaled."""
    told = []
    if it.scaling is not None:
        power = math.log2(it.scaling.scale)
        scale = f"{it.scaling.scale:.0f}" if power >= 0 else f"2**{power:.0f}"
        told.append(
            f"Multiply the loss by {scale}, and divide the gradients by it in {it.wide}: "
            f"{percent(it.scaled)} off. Or keep the params in {it.wide}."
        )
    if it.search is not None:
        entries = (f"  {row}" for row in table_of(it.search.plan.entries))
        return [*told, f"For dtypeguard.autocast, a {it.search.headline}", *entries]
    if it.is_spread or makes_all_wide(it):
        return told
    return [*told, *dict.fromkeys(loss.remedy for loss in it.fix)]


def _costs(it: Report) -> list[str]:
    """The table of what makes products wide."""
    if not it.costs or it.narrow is not None:  # where all is as if it were narrow
        return []
    told = [] if math.isnan(it.error) else [f"costs: {_wide_work(it)}"]
    table: list[Sequence[str]] = [("share", "line", "made wide by", "")]
    for share, origin, cause in ((x.share, x.origin, x.cause) for x in it.costs):
        line = "" if origin is None else place_of(origin)
        made = "itself" if cause == origin else place_of(cause)
        code = _code_of(cause if isinstance(cause, Origin) else origin)
        table.append((f"{100 * share:.0f}%", line, made, code))
    more = len(it.costs) - _MOST_COSTS
    rest = [f"{more} more are in to_json()."] * (more > 0)
    return [*told, *(f"  {row}" for row in columns(table[: _MOST_COSTS + 1])), *rest]


def _wide_work(it: Report) -> str:
    """How much runs wide."""
    if it.work is None or not it.work.flops:
        return "there are no matrix products to count."
    if not it.work.wide:
        return f"no matrix product runs wider than {it.work.narrow}."
    wide, narrow = percent(it.work.wide), it.work.narrow
    return f"{wide} of the operations of matrix products run wider than {narrow}."


def _code_of(origin: Origin | None) -> str:
    return "" if origin is None else origin.users.code


# What else is to be known


def notes(it: Report) -> list[str]:
    """What else is to be known, a sentence each."""
    return [sentence for says in _NOTES for sentence in says(it)]


def _updates(it: Report) -> list[str]:
    """What rounding does to updates, which the error of one step hardly shows."""
    if it.is_of_gradients and it.error:
        told = (
            "What rounding does to the update is not in it: audit the step that adds "
            "these gradients to the params."
        )
        if not is_rounded_once(it) or it.fix:
            return [told]
        return [
            "The gradients are rounded to the dtype of their weights: "
            f"differentiate with respect to w.astype(jnp.{it.wide}). {told}"
        ]
    stuck = {path: share for path, share in it.unmoved.items() if share > 0.01}
    if not stuck:
        return []
    most = max(stuck, key=stuck.__getitem__)
    also = f", and in {len(stuck) - 1} more" * (len(stuck) > 1)
    return [
        f"Rounding takes the update away in {percent(stuck[most])} of the elements of "
        f"{most or 'the output'}{also}: keep it in {it.wide}, or write {STOCHASTICALLY}."
    ]


def _updates_below(it: Report) -> Iterable[str]:
    is_first = max(it.unmoved.values(), default=0.0) > _MOSTLY
    return [] if is_first else _updates(it)


def _once(it: Report) -> Iterable[str]:
    is_said = it.is_spread and is_rounded_once(it)
    if it.once > 0 and math.isfinite(it.error) and not is_said:
        yield f"Rounding the outputs once gives {percent(it.once)}."


def _cancels(it: Report) -> Iterable[str]:
    if it.error and any(x.alone > 2 * it.error for x in it.losses):
        yield (
            "Some lines cause more error alone than all lines together: their "
            "roundings cancel. A gradient, or several steps, tells more."
        )


def _furthest(it: Report) -> Iterable[str]:
    outputs = it.outputs
    worst = sorted(outputs, key=lambda path: -outputs[path])[:3]
    if len(outputs) < 3 or not 0 < it.error < math.inf:
        return
    first, most = worst[0], outputs[worst[0]]
    if sum((error / most) ** 2 for error in outputs.values()) < 1 / _NEARLY_ALL:
        yield (
            f"Nearly all of the squared error is that of {first}, which is "
            f"{percent(most)} off. An audit without it tells of the others."
        )
        return
    told = [f"{path} ({percent(outputs[path])})" for path in worst]
    yield f"Furthest off of {len(outputs)} outputs: {', '.join(told)}."


def _vanishing(it: Report) -> Iterable[str]:
    if it.vanishing:
        counted = "counted, since there are no others"
        counted = counted if {*it.vanishing} == {*it.outputs} else "not counted"
        yield (
            f"0 but for rounding, in {it.wide} as well, or made of such values, and "
            f"{counted}: {_grouped(it.vanishing)}."
        )


def _held(it: Report) -> Iterable[str]:
    if it.held:
        places = [place_of(x) if x else "inside JAX" for x in it.held]
        more = f" and {len(places) - 3} more" * (len(places) > 3)
        yield (
            "Constants that the program holds in 16 bits or less are taken as they "
            f"are, on {', '.join(dict.fromkeys(places[:3]))}{more}."
        )


def _not_examined(it: Report) -> Iterator[str]:
    if it.not_separated:
        *few, last = it.not_separated[:3]
        places = f"{', '.join(few)} and {last}" if few else last
        yield f"Decisions that flip in {places} count as rounding: each run makes its own."
    if it.not_examined:
        yield f"Run as written, without a look inside: {', '.join(it.not_examined)}."
    if it.work is not None and it.costs and it.work.has_while:
        yield "The body of a while_loop counts once in the costs."
    if it.work is not None and it.work.not_counted:
        yield f"Not counted as work: {', '.join(it.work.not_counted)}."


_NOTES = _updates_below, _once, _cancels, _furthest, _vanishing, _held, _not_examined


def _grouped(errors: dict[str, float]) -> str:
    """Paths that differ by numbers as one, each with the greatest error."""
    groups = dict[str, list[str]]()
    for path in errors:
        groups.setdefault(_NUMBER.sub("*", path), []).append(path)
    told = []
    for paths in groups.values():
        most = percent(max(errors[path] for path in paths))
        parts = zip(*(_NUMBER.split(path) for path in paths))
        pattern = "".join(each[0] if len({*each}) == 1 else "*" for each in parts)
        many = f"{len(paths)} of {pattern} (up to {most} off)"
        told.append(many if len(paths) > 1 else f"{paths[0] or 'the output'} ({most} off)")
    return ", ".join(told)
