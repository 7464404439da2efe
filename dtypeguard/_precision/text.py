"""A report of precision as text: what is off, what helps, the lines, what is not seen."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from .._leaves.rows import columns, percent
from .._numbers.formats import products_named
from .._reference.difference import details_of, headline_of
from .._source.origin import Origin, place_of
from .rows import STOCHASTICALLY, LineLoss

# A `PrecisionReport`, which is made of these texts.
Report: TypeAlias = Any

# From this share of the squared error, or of the products, on, it is most of it.
_MOSTLY = 0.5
# XLA leaves out roundings. From this part of the error on, that is said.
_MUCH = 0.1
# Of the tables.
_MOST_DECISIONS, _MOST_LOSSES, _MOST_COSTS, _MOST_NAMED = 5, 8, 10, 3


def report(it: Report) -> list[str]:
    """All of it; where a reference differs by another computation, that alone."""
    first = f"precision: {it.headline}"
    compared = details_of(it.differences, it.divergence)
    if is_beside_rounding(it):
        return [first, *compared]
    told = " ".join([first, *_answer(it)])
    return [told, *compared, *_table(it), *advice(it), *_costs(it), *notes(it)]


# The headline


def headline(it: Report) -> str:
    """Off by so much, does not move, not finite or nothing to gain; first a reference."""
    told = [headline_of(it.differences)] if it.differences else []
    if is_beside_rounding(it):
        return told[0]
    told += _updates(it) if _is_stuck(it) else []
    if math.isnan(it.error):
        told.append(f"{_wide_work(it)} Nothing was run.")
    elif not it.error:
        told.append(_nothing(it))
    else:
        told.append(_not_finite(it) if math.isinf(it.error) else _off(it))
    return " ".join([told[0], *(x[:1].upper() + x[1:] for x in told[1:])])


def is_beside_rounding(it: Report) -> bool:
    """Whether the answer on a reference is no matter of lines in narrow dtypes."""
    verdicts = {each.verdict for each in it.differences}
    return "differs" in verdicts or (bool(verdicts) and it.wide == "float64")


def _setting(it: Report) -> str:
    """How the program was run; empty if as written."""
    if it.matmul_precision is not None:
        return products_named(it.matmul_precision).begin
    return "" if it.narrow is None else f"in {it.narrow}"


def _nothing(it: Report) -> str:
    if it.matmul_precision is not None:
        return (
            f"{_setting(it)} the outputs are the same: there are no float32 products, or "
            "each asks for another precision, or is too small to be rounded, or is of "
            "numbers that rounding keeps."
        )
    so_far = ", as far as they were examined" * bool(it.not_examined)
    return f"the outputs are those of {it.wide}{so_far}."


def _not_finite(it: Report) -> str:
    how = _setting(it) or "as written"
    if it.raises:
        return f"the program raises {how}, and does not in {it.wide}."
    text = f"the outputs are not finite {how}, and are in {it.wide}{_range(it)}"
    first = it.not_finite
    return f"{text}: {first.place} is the first that is not." if first else f"{text}."


def _off(it: Report) -> str:
    error = percent(it.error)
    off = f"the outputs are {error} off"
    off = f"{error} of the elements of the outputs differ" if it.is_of_integers else off
    off = f"{_setting(it)} {off}".strip()
    if abs(it.compiled - it.error) > _MUCH * it.error:
        off += f" ({percent(it.compiled)} as XLA compiles it here)"
    return f"{off}{_range(it)}."


def _range(it: Report) -> str:
    """What happens where the range of a dtype is too small."""
    scaling = it.scaling
    if scaling is None:
        return ""
    if scaling.scale < 1:
        return f", since gradients overflow {scaling.dtype}"
    lost = f"{percent(scaling.lost)} of their numbers are 0, and not in {it.wide}"
    return f", since gradients underflow {scaling.dtype}: {lost}"


# The answer: what computing the lines of the fix wide does


def _answer(it: Report) -> list[str]:
    if math.isnan(it.error) or not it.error:
        return []
    if it.scaling is not None and not it.fix:
        return [f"With the loss scaled it is {percent(it.scaling.error)}."]
    if it.error <= (it.tolerance or 0.0):
        return [f"That is within your {percent(it.tolerance)}."]
    if it.is_spread and it.tolerance is None:
        return [f"It is spread over {len(it.fix)} lines, and none stands out."]
    if it.fix:
        return [_with_fix(it)]
    if it.search is not None:
        within = "within" if it.search.is_within else "not within"
        bound = percent(it.tolerance)
        return [f"By the plan below it is {percent(it.mended)}, {within} {bound}."]
    if it.flipped > _MOSTLY:
        return [f"{percent(it.flipped)} of the squared error is decisions; no line helps."]
    return ["No line helps."]


def _with_fix(it: Report) -> str:
    count = len(it.fix)
    place = it.fix[0].place.partition(",")[0]  # a cast of dtypeguard has its path behind it
    lines = place if count == 1 else f"these {count} lines"
    how = f"in {it.wide}" if it.matmul_precision is None else "at a higher precision"
    text = f"With {lines} {how} it is {percent(it.mended)}"
    if it.price > _MOSTLY and it.matmul_precision is None:
        but = ", but so" if makes_all_wide(it) else ", and"
        text += f"{but} {percent(it.price)} of the matrix products become {it.wide}"
    if it.tolerance is None:
        return f"{text}."
    if it.mended <= it.tolerance:
        return f"{text}, within your {percent(it.tolerance)}."
    return f"{text}: no choice of lines reaches your {percent(it.tolerance)}."


def makes_all_wide(it: Report) -> bool:
    """Whether the fix helps since nearly all that comes after is wide as well."""
    is_cause = sum(each.share for each in it.fix) > _MOSTLY * (1 - it.flipped)
    is_of_products = it.matmul_precision is not None
    return it.price > _MOSTLY and it.tolerance is None and not (is_cause or is_of_products)


# The lines


def _table(it: Report) -> list[str]:
    more = len(it.losses) - len(_shown(it))
    left_out = [f"{more} more lines are in to_json()."] * bool(more)
    return [f"  {row}" for row in (*rows(it), *left_out, *decided(it))]


def rows(it: Report) -> list[str]:
    """The table of losses."""
    heads = "part of error", "off alone", "left if wide", "line", "rounds to", ""
    # Beside decisions, parts are those of what rounding alone causes.
    by_rounding = 1 - it.flipped if _MOSTLY < it.flipped < 1 else 1.0
    table: list[Sequence[str]] = [heads]
    for loss in _shown(it):
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


def _shown(it: Report) -> Sequence[LineLoss]:
    """The losses of the table: where decisions matter, few have a share."""
    if it.flipped <= _MOSTLY:
        return it.losses
    return [x for n, x in enumerate(it.losses) if n < _MOST_LOSSES or x in it.fix]


def decided(it: Report) -> list[str]:
    """What decisions that flipped cause, and where."""
    if not it.decisions:
        return []
    how = "cancels" if it.flipped < 0 else percent(it.flipped)
    text = "decisions that flipped" + f": {how}" * (not it.is_of_integers)
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


def advice(it: Report) -> list[str]:
    """What to write for each line of the fix, and where a loss is to be scaled."""
    told = []
    if it.scaling is not None:
        power = math.log2(it.scaling.scale)
        scale = f"{it.scaling.scale:.0f}" if power >= 0 else f"2**{power:.0f}"
        told.append(
            f"Multiply the loss by {scale}, and divide the gradients by it in {it.wide}: "
            f"{percent(it.scaling.error)} off. Or keep the params in {it.wide}."
        )
    if it.search is not None:
        curve = (f"  {row}" for row in it.search.rows())
        return [*told, f"For dtypeguard.autocast, a {it.search.headline}", *curve]
    if it.is_spread or makes_all_wide(it):
        return told
    return [*told, *dict.fromkeys(loss.remedy for loss in it.fix)]


def _costs(it: Report) -> list[str]:
    """The table of what makes products wide."""
    if not it.costs or it.narrow is not None:  # where all is as if it were narrow
        return []
    told = [] if math.isnan(it.error) else [f"costs: {_wide_work(it)}"]
    table: list[Sequence[str]] = [("share", "line", "made wide by", "")]
    for cost in it.costs[:_MOST_COSTS]:
        line = "" if cost.origin is None else place_of(cost.origin)
        made = "itself" if cost.cause == cost.origin else place_of(cost.cause)
        code = _code_of(cost.cause if isinstance(cost.cause, Origin) else cost.origin)
        table.append((f"{100 * cost.share:.0f}%", line, made, code))
    more = len(it.costs) - _MOST_COSTS
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


def _code_of(origin: Origin | None) -> str:
    return "" if origin is None else origin.users.code


# What else is to be known


def notes(it: Report) -> list[str]:
    """What else is to be known, a sentence each."""
    told = [] if _is_stuck(it) else _updates(it)
    if len(it.outputs) >= 3 and 0 < it.error < math.inf:
        worst = ", ".join(_named(it.outputs)[:_MOST_NAMED])
        told.append(f"Furthest off of {len(it.outputs)} outputs: {worst}.")
    if it.vanishing:
        is_all = {*it.vanishing} == {*it.outputs}
        counted = "counted, since there are no others" if is_all else "not counted"
        told.append(
            f"0 but for rounding, in {it.wide} as well, or made of such values, and "
            f"{counted}: {_few(_named(it.vanishing))}."
        )
    if it.not_examined:
        named = _few(it.not_examined)
        told.append(f"Run as written, without a look inside: {named}.")
    return told


def _is_stuck(it: Report) -> bool:
    """Whether rounding takes most of an update away, which comes first then."""
    return max(it.unmoved.values(), default=0.0) > _MOSTLY


def _updates(it: Report) -> list[str]:
    """What rounding does to updates, which the error of one step hardly shows."""
    stuck = {path: share for path, share in it.unmoved.items() if share > 0.01}
    if not stuck:
        return []
    most = max(stuck, key=stuck.__getitem__)
    also = f", and in {len(stuck) - 1} more" * (len(stuck) > 1)
    return [
        f"Rounding takes the update away in {percent(stuck[most])} of the elements of "
        f"{most or 'the output'}{also}: keep it in {it.wide}, or write {STOCHASTICALLY}."
    ]


def _named(errors: dict[str, float]) -> list[str]:
    """Outputs with their errors, the greatest first."""
    worst = sorted(errors, key=lambda path: -errors[path])
    return [f"{x or 'the output'} ({percent(errors[x])})" for x in worst]


def _few(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMED} more" * (len(names) > _MOST_NAMED)
    return ", ".join(names[:_MOST_NAMED]) + more
