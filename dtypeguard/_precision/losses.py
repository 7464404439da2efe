"""What a report says of losses: which lines lose precision, and which to compute wider."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from .._leaves.casts import casts_text
from .._leaves.dtypes import kind
from .._numbers.formats import Formats
from .._numbers.lines import Line
from .._numbers.measure import Measures
from .._source.files import package
from .rows import STOCHASTICALLY, LineLoss, Scaled, Unreached
from .runs import Runs, WideRun
from .time_limit import TimeLimit

RemedyOfLine = Callable[[Line, bool], str]

_LEAST_SHARE_OF_ERROR = 0.01
# From this share of the squared error on, it is decisions that matter.
_MOSTLY = 0.5
# The error that is small enough where that as written is infinite.
_FINITE = 0.1
# How much of the squared error the lines of the fix may leave; if none leave so little,
# those that leave half are of use as well.
_LEFT, _HALF = 0.1, 0.5
# Until when lines alone, and shares, are measured: the rest of the time is for the fix.
_TIME_ALONE, _TIME_OF_SHARES = 0.5, 0.75
# How many lines are wide in runs of their own, or together; how many runs are made.
_MOST_ALONE, _MOST_TOGETHER, _MOST_RUNS = 8, 64, 96
# From this share of the products on it is no fix to make them wide, if there is another.
_MOST_PRICE = 0.5


class Losses(NamedTuple):
    """The lines that lose precision, the run with some of them wide, one scaled."""

    lines: tuple[LineLoss, ...]
    run: WideRun
    scaling: Scaled | None
    unreached: Unreached | None


def line_losses(
    measures: Measures,
    runs: Runs,
    tolerance: float | None,
    show_status: Callable[[str], None],
    remedy: RemedyOfLine,
    planned: Collection[int] | None = None,
    limit: TimeLimit | None = None,
) -> Losses:
    """The lines with more than a hundredth of the error, the most important first.

    Within a limit of time, of which the errors of lines alone have half.
    """
    limit = limit or TimeLimit()
    status = lambda number: show_status(f"measuring line {number + 1} of {measures.lines}")
    measures.before_run = limit.check
    if runs.total:
        with limit.phase(_TIME_ALONE):
            if measures.total:
                measures.measure_alone(status)
        with limit.phase(_TIME_OF_SHARES):
            measures.measure_shares(status)
    shares = measures.shares() if "own" in vars(measures) else {}
    if not runs.total or ("own" in vars(measures) and not measures.total):
        # There is no error, or all of it is decisions.
        shares = dict.fromkeys(range(measures.lines), 0.0)
    # Where roundings cancel, a share depends on the lines before.
    cancel = sum(map(abs, shares.values())) > 2
    weight = measures.about if cancel else lambda number: abs(shares[number])
    # What is nearly the same is in the order of the program.
    rank = lambda number: -float(f"{weight(number):.2g}")
    order = sorted(sorted(shares), key=rank)
    important = [number for number in order if abs(shares[number]) > _LEAST_SHARE_OF_ERROR]
    flipped = runs.flipped(measures.total) if "own" in vars(measures) else 0.0
    found, alone, scaling = runs.nothing, dict[int, WideRun](), None
    with limit.phase(1.0):
        show_status("looking for a small set of lines")
        scaling, bound = runs.scaled(), allowed(runs, tolerance)
        if planned is not None:
            found = found._replace(lines=tuple(n for n in order if n in planned))
        elif scaling is None or scaling.error > bound:  # to scale the loss costs nothing
            tried = [*important]
            if flipped > _MOSTLY:  # a line may flip decisions, and do nothing else
                tried += [number for number in order if number not in important]
            for number in tried[:_MOST_ALONE]:
                alone[number] = runs.with_wide([number], keeps=True)
            found = _fix(runs, order, [*alone], bound, tolerance is not None)
    losses = list[LineLoss]()
    for number in order:
        if number in important or number in found.lines:
            line, meant = measures.program.lines[number], None
            with limit.phase(1.0):
                meant = measures.constant(number)
            wide = alone.get(number)
            loss = LineLoss(
                origin=line.origin,
                share=shares[number] * (1 - flipped),
                alone=measures.alone(number),
                left=math.nan if wide is None else wide.left,
                dtypes=tuple(sorted(line.dtypes)),
                constant=None
                if meant is None
                else _rounded_digits(meant, line.constants[meant]),
                remedy=remedy(line, found.keeps) if number in found.lines else "",
                cast=casts_text([*line.casts]) if line.casts else None,
            )
            losses.append(loss)
    measures.before_run = lambda: None
    unreached = None
    if not limit.is_complete:
        unreached = Unreached(
            lines=measures.lines - len(shares),
            explained=sum(shares.values()) * (1 - flipped),
            seconds=limit.seconds,
            is_interrupted=limit.is_interrupted,
        )
    return Losses((*losses,), found, scaling, unreached)


def _fix(
    runs: Runs, order: Sequence[int], few: Sequence[int], bound: float, is_asked: bool
) -> WideRun:
    """The cheapest line that is enough; else some lines, each of which is needed.

    If none are enough and no tolerance was asked for, what leaves half is of use as well.
    """
    lines = runs.program.lines
    alone = {n: _better(runs, [n], bound) for n in few}
    dear = {n for n, each in alone.items() if each.price > _MOST_PRICE}
    if not is_asked:  # to keep inputs wide is no more than to compute all so
        inputs = {n for n in dear if lines[n].origin is None}
        order = [n for n in order if n not in inputs]
        alone = {n: each for n, each in alone.items() if n not in inputs}
    if not alone or runs.total <= bound:
        return runs.nothing
    is_enough = lambda each: each.error <= bound
    enough = sorted(filter(is_enough, alone.values()), key=lambda each: each.price)
    if enough and enough[0].lines[0] not in dear:
        return enough[0]
    left = lambda n: alone[n].left if n in alone else 1.0
    # What makes most products wide comes last, and is dropped first.
    ranked = sorted(order, key=lambda n: (n in dear, left(n)))[:_MOST_TOGETHER]
    most = runs.count + _MOST_RUNS
    error = lambda lines: (
        _better(runs, lines, bound).error if runs.count < most else math.inf
    )
    together = _better(runs, smallest(ranked, error, bound), bound)
    is_dear = together.price > _MOST_PRICE
    if is_enough(together):
        return enough[0] if enough and is_dear else together
    if is_asked:  # which no lines reach
        return together
    tried = [*alone.values(), together]
    helps = [each for each in tried if each.error <= _HALF**0.5 * runs.total]
    few_first = lambda x: (round(4 * x.left), len(x.lines), x.left)
    return min(helps, key=few_first, default=runs.nothing)


def smallest(
    ranked: Sequence[int], error: Callable[[list[int]], float], bound: float
) -> list[int]:
    """The first of ranked items that are enough together, less what is not needed.

    They are 1, 2, 4, 8 ...: all of them, if these are not enough.
    """
    count = 1
    while count < len(ranked) and error([*ranked[:count]]) > bound:
        count *= 2
    found = [*ranked[:count]]
    for item in reversed(found) if error(found) <= bound else ():
        others = [other for other in found if other != item]
        found = others if others and error(others) <= bound else found
    return found


def _better(runs: Runs, lines: Sequence[int], bound: float) -> WideRun:
    """The better run with some lines wide: what they make stays wide, or is cast back."""
    kept = runs.with_wide(lines, keeps=True)
    # Inputs are not cast back, and what makes no product wide costs nothing.
    is_line = all(runs.program.lines[number].origin is not None for number in lines)
    if not is_line or (kept.error <= bound and not kept.price):
        return kept
    cast = runs.with_wide(lines, keeps=False)
    if kept.error <= bound:
        is_better = cast.error <= bound and cast.price < kept.price
    else:
        is_better = cast.error < kept.error
    return cast if is_better else kept


def allowed(runs: Runs, tolerance: float | None) -> float:
    """The error that is small enough."""
    if tolerance is not None:
        return tolerance
    return _LEFT**0.5 * runs.total if math.isfinite(runs.total) else _FINITE


def _rounded_digits(meant: float, number: float) -> str:
    """A number and what became of it, with digits in which they differ."""
    texts = [f"{meant:.{digits}g} -> {number:.{digits}g}" for digits in (6, 9, 17)]
    return next((t for t in texts if len({*t.split(" -> ")}) == 2), texts[0])


def advice_of(formats: Formats, has_float64: bool, line: Line, keeps: bool) -> str:
    """What to write for a line."""
    name, origin = str(formats.wide), line.origin
    if line.dtypes and all(kind(jnp.dtype(each)) == "complex" for each in line.dtypes):
        name = f"complex{16 * formats.wide.itemsize}"
    if origin is None:
        return f"Keep the inputs in jnp.{name}."
    if line.casts:
        return _of_casts(line, f"jnp.{name}")
    if not origin.file:
        made = ", ".join(sorted(line.primitives))
        return f"Call it with jnp.{name}: no line outside JAX leads to {made}."
    if origin.is_of_apply_updates:
        return (
            f"{origin.place} rounds the new params: write {STOCHASTICALLY}, which rounds "
            f"them stochastically, or keep them in jnp.{name}."
        )
    is_narrow = any(jnp.dtype(dtype).itemsize < 4 for dtype in line.dtypes)
    if origin.is_of_optimizer and is_narrow and not line.only_casts:
        return (
            f"{origin.place} rounds inside the optimizer: write dtypeguard.guard(opt, "
            f"policy=dtypeguard.Policy(compute_dtype=jnp.{name})), which computes and "
            f"keeps its state in {formats.wide}."
        )
    text = f"Compute {origin.place} in {name}"
    if origin.called_from:
        text = f"Have {package(origin.file)} at {origin.users} compute in {name}"
    elif not keeps:
        text += ", and cast its result back"
    if line.is_in_loop:
        text += f". Where a loop carries it, start the carry in {name} as well"
    needs_x64 = formats.wide.itemsize == 8 and not has_float64
    return f"{text}.{' That needs jax_enable_x64.' * needs_x64}"


def _of_casts(line: Line, wide: str) -> str:
    """What to write where dtypeguard itself rounds, to the nearest or at random."""
    casts = [*line.casts]
    is_at_random = not line.primitives.isdisjoint(("jit", "pjit"))
    text = f"On {line.origin.place}, {casts_text(casts)} rounds: keep it in {wide}"  # pyright: ignore[reportOptionalMemberAccess]: a cast has a line
    if casts[0].owner == "guard" and not is_at_random:
        text += f" by policy=dtypeguard.Policy(compute_dtype={wide})"
    at_random = f", or let it round at random by {STOCHASTICALLY}"
    return f"{text}{at_random * (not is_at_random)}."
