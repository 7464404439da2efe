"""A report of precision as text: what is off, what helps, the lines, what is not seen."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from .._leaves.table import columns, percent
from .._numbers.formats import products_named
from .._reference.difference import details_of, headline_of
from .._source.origin import Origin, place_of
from .rows import KEEP_WIDE, STOCHASTICALLY, IntegerMisfit, LineLoss, told_of_argument

# A `PrecisionReport`, which is made of these texts.
Report: TypeAlias = Any

# From this share of the squared error, or of the products, on, it is most of it.
_MOST_OF_ERROR = 0.5
# XLA leaves out roundings. From this part of the error on, that is said.
_MUCH = 0.1
# XLA may round the wide numbers differently as well, by so many units in their last place.
_FEW_ROUNDINGS = 8
# Numbers below this are printed with all digits: they are noted in float32.
_EXACT = 1e7
# Of the tables.
_MOST_DECISIONS, _MOST_LOSSES, _MOST_COSTS, _MOST_NAMED = 5, 8, 10, 3


def report(it: Report) -> list[str]:
    """All of it; where a reference differs by another computation, that alone."""
    first = f"precision: {it.headline}"
    compared = details_of(it.differences, it.divergence)
    if is_beside_rounding(it):
        return [first, *compared]
    told = " ".join([first, *_answer(it), *_unknown(it)])
    return [told, *compared, *_table(it), *advice(it), *_costs(it), *notes(it)]


# The headline


def headline(it: Report) -> str:
    """Off by so much, does not move, not finite or nothing to gain; first a reference."""
    told = [*_rounded(it), *_first_misfit(it)]
    if it.differences:
        told.append(headline_of(it.differences))
    if is_beside_rounding(it):
        return _report_sentences(told)
    told += _updates(it) if _is_stuck(it) else []
    if math.isnan(it.error):
        told.append(f"{_wide_work(it)} Nothing was run.")
    elif not it.error:
        told += [*_narrowing_lines(it), _nothing(it)]
    else:
        told.append(_not_finite_text(it) if math.isinf(it.error) else _off_text(it))
    return _report_sentences(told)


def _report_sentences(told: Sequence[str]) -> str:
    return " ".join([told[0], *(x[:1].upper() + x[1:] for x in told[1:])])


def _rounded(it: Report) -> list[str]:
    """The argument that was rounded before the program saw it."""
    return [f"{told_of_argument(row)} {KEEP_WIDE}" for row in it.rounded[:1]]


def _unknown(it: Report) -> list[str]:
    """The constants that may have been rounded before the program was traced."""
    if not it.unknown:
        return []
    named = _few(
        [f"{x.value:.6g} (within {x.within:.1g}, {_at_line(x.origin)})" for x in it.unknown]
    )
    return [f"Constants of 16 bits that may have been other numbers: {named}."]


def _first_misfit(it: Report) -> list[str]:
    """The first line whose integers do not fit their dtype."""
    if not it.integers:
        return []
    row = it.integers[0]
    info = np.iinfo(row.dtype)
    end = info.min if row.value < info.min else info.max
    reason = f"and {row.dtype} ends at {end:,}"
    if math.isnan(row.value):
        value, reason = "NaN", f"which {row.dtype} has not"
    elif abs(row.value) < _EXACT:
        value = f"{row.value:,.0f}"
    else:
        value = f"{row.value:.4g}"
    count = f"{row.count:,} of {row.size:,} numbers there do not fit"
    return [
        f"{_at_line(row.origin)} makes {value}, {reason}: {count}, "
        f"in the run in {it.run.wide} as well."
    ]


def _wider(row: IntegerMisfit) -> list[str]:
    """What to write for integers that do not fit."""
    for name in ("int32", "int64", "uint64"):
        info = np.iinfo(name)
        if info.min <= row.value < info.max:
            needs_x64 = " That needs jax_enable_x64." if info.bits == 64 else ""
            return [f"Compute the integers of {_at_line(row.origin)} in {name}.{needs_x64}"]
    return []


def _at_line(origin: Origin | None) -> str:
    return "a line inside JAX" if origin is None else place_of(origin)


def _narrowing_lines(it: Report) -> list[str]:
    """The lines that narrow what becomes bits or integers."""
    return [
        f"{_at_line(row.origin)} narrows {row.before} to {row.after} on the way to bits, "
        "a key or an integer: "
        f"{row.equal:,} of {row.different:,} different numbers become equal."
        for row in it.narrowed[:_MOST_NAMED]
    ]


def is_beside_rounding(it: Report) -> bool:
    """Whether the answer on a reference is no matter of lines in narrow dtypes."""
    verdicts = {each.verdict for each in it.differences}
    return "differs" in verdicts or (bool(verdicts) and it.run.wide == "float64")


def _setting(it: Report) -> str:
    """How the program was run; empty if as written."""
    if it.run.matmul_precision is not None:
        return products_named(it.run.matmul_precision).begin
    return "" if it.run.narrow is None else f"in {it.run.narrow}"


def _nothing(it: Report) -> str:
    if it.run.matmul_precision is not None:
        return (
            f"{_setting(it)} the outputs are the same: there are no float32 products, or "
            "each asks for another precision, or is too small to be rounded, or is of "
            "numbers that rounding keeps."
        )
    told = f"the outputs are those of {it.run.wide}"
    # What operations give one by one is not what a user runs.
    if it.run.compiled > _FEW_ROUNDINGS * np.finfo(it.run.wide).eps:
        told += f" op by op, and {percent(it.run.compiled)} off as XLA compiles it here"
    if it.unexamined:
        told += f", but for what was not examined: {_few(_unexamined(it))}"
    return f"{told}."


def _not_finite_text(it: Report) -> str:
    how = _setting(it) or "as written"
    if it.run.raises:
        return f"the program raises {how}, and does not in {it.run.wide}."
    text = f"the outputs are not finite {how}, and are in {it.run.wide}{_range(it)}"
    first = it.not_finite
    return f"{text}: {first.place} is the first that is not." if first else f"{text}."


def _off_text(it: Report) -> str:
    error = percent(it.error)
    off = f"the outputs are {error} off"
    off = f"{error} of the elements of the outputs differ" if it.run.is_of_integers else off
    off = f"{_setting(it)} {off}".strip()
    if abs(it.run.compiled - it.error) > _MUCH * it.error:
        off += f" ({percent(it.run.compiled)} as XLA compiles it here)"
    return f"{off}{_range(it)}."


def _range(it: Report) -> str:
    """What happens where the range of a dtype is too small."""
    scaling = it.scaling
    if scaling is None:
        return ""
    if scaling.scale < 1:
        return f", since gradients overflow {scaling.dtype}"
    lost = f"{percent(scaling.lost)} of their numbers are 0, and not in {it.run.wide}"
    return f", since gradients underflow {scaling.dtype}: {lost}"


# The answer: what computing the lines of the fix wide does


def _answer(it: Report) -> list[str]:
    if math.isnan(it.error) or not it.error:
        return []
    if it.scaling is not None and not it.fix:
        return [f"With the loss scaled it is {percent(it.scaling.error)}."]
    if it.error <= (it.run.tolerance or 0.0):
        return [f"That is within your {percent(it.run.tolerance)}."]
    if _is_spread(it) and it.run.tolerance is None:
        return [f"It is spread over {len(it.fix)} lines, and none stands out."]
    if it.fix:
        return [_with_fix(it)]
    if it.search is not None:
        within = "within" if it.search.is_within else "not within"
        bound = percent(it.run.tolerance)
        return [f"By the plan below it is {percent(it.fixed.error)}, {within} {bound}."]
    if it.decisions.share > _MOST_OF_ERROR:
        share = percent(it.decisions.share)
        return [f"{share} of the squared error is decisions; no line helps."]
    return [] if it.unreached is not None else ["No line helps."]


def _is_spread(it: Report) -> bool:
    """Whether the error is spread over many lines, and not even a few stand out."""
    most, *others = sorted((x.share for x in it.losses), reverse=True) or [0.0]
    return len(it.fix) > 3 and most < 0.5 and most + sum(others[:2]) < 0.75


def _with_fix(it: Report) -> str:
    count = len(it.fix)
    place = it.fix[0].place.partition(",")[0]  # a cast of dtypeguard has its path behind it
    lines = place if count == 1 else f"these {count} lines"
    wide, tolerance, error = it.run.wide, it.run.tolerance, it.fixed.error
    is_own = it.run.matmul_precision is None
    how = f"in {wide}" if is_own else "at a higher precision"
    text = f"With {lines} {how} it is {percent(error)}"
    if it.fixed.price > _MOST_OF_ERROR and is_own:
        but = ", but then" if makes_all_wide(it) else ", and"
        text += f"{but} {percent(it.fixed.price)} of the matrix products become {wide}"
    if tolerance is None:
        return f"{text}."
    if error <= tolerance:
        return f"{text}, within your {percent(tolerance)}."
    return f"{text}: no choice of lines reaches your {percent(tolerance)}."


def makes_all_wide(it: Report) -> bool:
    """Whether the fix helps since nearly all that comes after is wide as well."""
    is_cause = sum(each.share for each in it.fix) > _MOST_OF_ERROR * (
        1 - it.decisions.share
    )
    is_asked = it.run.tolerance is not None or it.run.matmul_precision is not None
    return it.fixed.price > _MOST_OF_ERROR and not is_cause and not is_asked


# The lines


def _table(it: Report) -> list[str]:
    more = len(it.losses) - len(_shown_losses(it))
    left_out = [f"{more} more lines are in to_json()."] * bool(more)
    return [f"  {row}" for row in (*rows(it), *left_out, *decided(it))]


def rows(it: Report) -> list[str]:
    """The table of losses."""
    heads = "part of error", "off alone", "left if wide", "line", "rounds to", ""
    # Beside decisions, parts are those of what rounding alone causes.
    by_rounding = 1 - it.decisions.share if _MOST_OF_ERROR < it.decisions.share < 1 else 1.0
    table: list[Sequence[str]] = [heads]
    for loss in _shown_losses(it):
        part = loss.share / by_rounding
        table.append(
            (
                "cancels" if part < -0.01 else f"{100 * max(part, 0):.0f}%",
                percent(loss.alone),
                "" if math.isnan(loss.left) else percent(loss.left),
                loss.place,
                ", ".join(loss.dtypes) + (f"; {loss.constant}" * bool(loss.constant)),
                loss.origin.code if loss.origin else "",
            )
        )
    return columns(table) if it.losses else []


def _shown_losses(it: Report) -> Sequence[LineLoss]:
    """The losses of the table: where decisions matter, few have a share."""
    if it.decisions.share <= _MOST_OF_ERROR:
        return it.losses
    return [x for n, x in enumerate(it.losses) if n < _MOST_LOSSES or x in it.fix]


def decided(it: Report) -> list[str]:
    """What decisions that flipped cause, and where."""
    if not it.decisions.lines or not it.error:
        return []
    how = "cancels" if it.decisions.share < 0 else percent(it.decisions.share)
    text = "decisions that flipped" + f": {how}" * (not it.run.is_of_integers)
    rows = [
        (
            percent(each.flipped / each.count),
            f"of {each.count:,}",
            "inside JAX" if each.origin is None else place_of(each.origin),
            _code_text(each.origin),
        )
        for each in it.decisions.lines[:_MOST_DECISIONS]
    ]
    return [text, *columns(rows)]


def advice(it: Report) -> list[str]:
    """What to write for each line of the fix, and where a loss is to be scaled."""
    told = [] if not it.integers else _wider(it.integers[0])
    if it.scaling is not None:
        power = math.log2(it.scaling.scale)
        scale = f"{it.scaling.scale:.0f}" if power >= 0 else f"2**{power:.0f}"
        told.append(
            f"Multiply the loss by {scale}, and divide the gradients by it in "
            f"{it.run.wide}: {percent(it.scaling.error)} off. Or keep the params in "
            f"{it.run.wide}."
        )
    if it.search is not None:
        curve = (f"  {row}" for row in it.search.rows())
        return [*told, f"For dtypeguard.autocast, a {it.search.headline}", *curve]
    if _is_spread(it) or makes_all_wide(it):
        return told
    return [*told, *dict.fromkeys(loss.remedy for loss in it.fix)]


def _costs(it: Report) -> list[str]:
    """The table of what makes products wide."""
    if it.work is None or not it.work.costs or it.run.narrow is not None:
        return []  # with `narrow`, all is as if it were narrow
    told = [] if math.isnan(it.error) else [f"costs: {_wide_work(it)}"]
    table: list[Sequence[str]] = [("share", "line", "made wide by", "")]
    for cost in it.work.costs[:_MOST_COSTS]:
        line = "" if cost.origin is None else place_of(cost.origin)
        made = "itself" if cost.cause == cost.origin else place_of(cost.cause)
        code = _code_text(cost.cause if isinstance(cost.cause, Origin) else cost.origin)
        table.append((f"{100 * cost.share:.0f}%", line, made, code))
    more = len(it.work.costs) - _MOST_COSTS
    rest = [f"{more} more are in to_json()."] * (more > 0)
    return [*told, *(f"  {row}" for row in columns(table)), *rest]


def _wide_work(it: Report) -> str:
    """How much runs wide."""
    if it.work is None or not it.work.flops:
        return "there are no matrix products to count."
    if not it.work.wide:
        return f"no matrix product runs wider than {it.work.narrow}."
    wide, narrow = percent(it.work.wide), it.work.narrow
    return f"{wide} of the operations of matrix products run wider than {narrow}."


def _code_text(origin: Origin | None) -> str:
    return "" if origin is None else origin.users.code


# What else is to be known


def notes(it: Report) -> list[str]:
    """What else is to be known, a sentence each."""
    told = _unreached_text(it)
    told += [] if _is_stuck(it) else _updates(it)
    vanishing, counted = ([*_named(it, x)] for x in (True, False))
    if len(counted or vanishing) >= 3 and 0 < it.error < math.inf:
        worst = ", ".join((counted or vanishing)[:_MOST_NAMED])
        told.append(f"Furthest off of {len(counted or vanishing)} outputs: {worst}.")
    if vanishing:
        how = "not counted" if counted else "counted, since there are no others"
        told.append(
            f"0 but for rounding, in {it.run.wide} as well, or made of such values, and "
            f"{how}: {_few(vanishing)}."
        )
    if not it.is_traced_wide and it.run.matmul_precision is None:
        told.append(
            "It does not trace with float32 arguments, so its constants count as they are."
        )
    if it.error:
        told += _narrowing_lines(it)
        if it.unexamined:
            named = _few(_unexamined(it))
            told.append(f"Run as written, without a look inside: {named}.")
    return told


def _unreached_text(it: Report) -> list[str]:
    """What was not measured in the time for lines."""
    unreached = it.unreached
    if unreached is None:
        return []
    if unreached.is_interrupted:
        end = "Interrupted"
        remedy = ""
    else:
        end = f"Ended after {unreached.seconds:g} s"
        remedy = " Write seconds=None (--seconds none) for all of it."
    count = "1 line was" if unreached.lines == 1 else f"{unreached.lines} lines were"
    explained = percent(unreached.explained)
    return [
        f"{end}: {count} not measured, and those that were explain {explained} of the "
        f"squared error. The fix may be another one.{remedy}"
    ]


def _unexamined(it: Report) -> list[str]:
    return [row.place for row in it.unexamined]


def _stuck(it: Report) -> dict[str, float]:
    """The outputs of whose updates rounding takes a part away, with that part."""
    counted = {path: x.unmoved or 0.0 for path, x in it.outputs.items() if not x.vanishes}
    return {path: share for path, share in counted.items() if share > 0.01}


def _is_stuck(it: Report) -> bool:
    """Whether rounding takes most of an update away, which comes first then."""
    return max(_stuck(it).values(), default=0.0) > _MOST_OF_ERROR


def _updates(it: Report) -> list[str]:
    """What rounding does to updates, which the error of one step hardly shows."""
    stuck = _stuck(it)
    if not stuck:
        return []
    most = max(stuck, key=stuck.__getitem__)
    also = f", and in {len(stuck) - 1} more" * (len(stuck) > 1)
    return [
        f"Rounding takes the update away in {percent(stuck[most])} of the elements of "
        f"{most or 'the output'}{also}: keep it in {it.run.wide}, or write "
        f"{STOCHASTICALLY}."
    ]


def _named(it: Report, vanish: bool) -> Iterator[str]:
    """The outputs that vanish or the others, with their errors, the greatest first."""
    for path, row in sorted(it.outputs.items(), key=lambda each: -each[1].error):
        if row.vanishes == vanish:
            yield f"{path or 'the output'} ({percent(row.error)})"


def _few(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMED} more" * (len(names) > _MOST_NAMED)
    return ", ".join(names[:_MOST_NAMED]) + more
