"""What a report says of losses: which lines lose precision, and which to compute wider."""

from collections.abc import Callable, Collection
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._leaves.casts import shown as shown_casts
from .._leaves.dtypes import kind
from .._numbers.formats import Formats
from .._numbers.lines import Line
from .._numbers.measure import Measures
from .._source.files import package
from .rows import STOCHASTICALLY, LineLoss, Scaled, WideLines
from .runs import Runs
from .search import Bound, Found, find

Remedy = Callable[[Line, bool], str]

_LEAST_SHARE = 0.01
# From this share of the squared error on, it is decisions that matter.
_MOSTLY = 0.5
# The error that is small enough where that as written is infinite.
_FINITE = 0.1
# How much of the squared error the lines of the fix may leave.
_LEFT = 0.1


class Losses(NamedTuple):
    """The lines that lose precision, those to compute wider, and the run in which they are.

    Attributes:
        lines: those that lose it.
        fix: those to compute wider.
        keeps: whether what they make stays so.
        run: that with the fix.
        explained: what the shares of all lines add up to.
        scaling: the run with the loss scaled.
    """

    lines: tuple[LineLoss, ...]
    fix: tuple[LineLoss, ...]
    keeps: bool
    run: WideLines
    explained: float | None
    scaling: Scaled | None


def line_losses(
    measures: Measures,
    runs: Runs,
    tolerance: float | None,
    show_status: Callable[[str], None],
    remedy: Remedy,
    planned: Collection[int] | None = None,
) -> Losses:
    """The lines with more than a hundredth of the error, the most important first."""
    status = lambda number: show_status(f"measuring line {number + 1} of {measures.lines}")
    # Where all of the error is decisions, lines have no share in it.
    shares = measures.shares(status) or [0.0] * (measures.lines if runs.total else 0)
    numbers, is_finite = range(len(shares)), bool(np.isfinite(measures.total))
    # Where roundings cancel, a share depends on the lines before.
    cancel = sum(map(abs, shares)) > 2
    weight = measures.about if cancel else lambda number: abs(shares[number])
    # A tie is in the order of the source.
    place = lambda origin: ("", 0) if origin is None else (origin.file, origin.line)
    places = [place(line.origin) for line in measures.program.lines]
    order = sorted(numbers, key=lambda n: (-_two_digits(weight(n)), places[n]))
    show_status("looking for a small set of lines")
    important = [number for number in order if abs(shares[number]) > _LEAST_SHARE]
    scaling, bound = runs.scaled(), allowed(runs, tolerance)
    flipped = runs.flipped(measures.total)
    found = Found([], True, runs.nothing, {})
    if planned is not None:
        found = found._replace(lines=[n for n in order if n in planned])
    elif scaling is None or scaling.error > bound:  # to scale the loss costs nothing
        tried = [*important]
        if flipped > _MOSTLY:  # a line may flip decisions, and do nothing else
            tried += [number for number in order if number not in important]
        limit = Bound(bound, tolerance is not None)
        found = find(runs, order, tried, limit, measures.about)
    by_rounding = 1 - flipped
    losses = {}
    for number in order:
        if number in important or number in found.lines:
            line, meant = measures.program.lines[number], measures.constant(number)
            alone = found.alone.get(number)
            if alone is None and found.lines == [number] and planned is None:
                alone = found.run
            losses[number] = LineLoss(
                origin=line.origin,
                share=shares[number] * by_rounding,
                alone=measures.alone(number),
                left=np.nan if alone is None else alone.left,
                price=np.nan if alone is None else alone.price,
                dtypes=tuple(sorted(line.dtypes)),
                constant=None if meant is None else _rounded(meant, line.constants[meant]),
                remedy=remedy(line, found.keeps),
                backward=0.0,
                cast=shown_casts([*line.casts]) if line.casts else None,
                scope=line.scope,
            )
    return Losses(
        tuple(losses.values()),
        tuple(losses[number] for number in found.lines),
        found.keeps,
        found.run,
        by_rounding * bool(shares) if is_finite else None,
        scaling,
    )


def allowed(runs: Runs, tolerance: float | None) -> float:
    """The error that is small enough."""
    if tolerance is not None:
        return tolerance
    return _LEFT**0.5 * runs.total if np.isfinite(runs.total) else _FINITE


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def _rounded(meant: float, number: float) -> str:
    """A number and what became of it, with digits in which they differ."""
    texts = [f"{meant:.{digits}g} -> {number:.{digits}g}" for digits in (6, 9, 17)]
    return next((t for t in texts if len({*t.split(" -> ")}) == 2), texts[0])


_STORED = (
    'With state_dtype=jnp.bfloat16, rounding="stochastic" it is stored in bfloat16 and '
    "rounded at random."
)


def advice_of(formats: Formats, has_float64: bool, line: Line, keeps: bool) -> str:
    """What to write for a line."""
    name = str(formats.wide)
    if line.dtypes and all(kind(jnp.dtype(each)) == "complex" for each in line.dtypes):
        name = f"complex{16 * formats.wide.itemsize}"
    if line.origin is None:
        return f"Keep the inputs in jnp.{name}."
    if line.casts:
        return _of_casts(line, f"jnp.{name}")
    if not line.origin.file:
        made = ", ".join(sorted(line.primitives))
        return f"Call it with jnp.{name}: no line outside JAX leads to {made}."
    where = line.origin.place
    is_narrow = any(jnp.dtype(dtype).itemsize < 4 for dtype in line.dtypes)
    if line.origin.is_of_apply_updates:
        return (
            f"{where} rounds the new params: write {STOCHASTICALLY}, which rounds them "
            f"stochastically, or keep them in jnp.{name}."
        )
    if line.origin.is_of_optimizer and is_narrow and not line.only_casts:
        return (
            f"{where} rounds inside the optimizer: write dtypeguard.guard(opt, policy="
            f"dtypeguard.Policy(compute_dtype=jnp.{name})), which computes and keeps its "
            f"state in {formats.wide}. {_STORED}"
        )
    text = f"Compute {where} in {name}"
    if line.origin.called_from:
        called = f"{package(line.origin.file)} at {line.origin.users}"
        text = f"Have {called} compute in {name}"
    elif not keeps:
        text += ", and cast its result back"
    if line.is_in_loop:
        text += f". Where a loop carries it, start the carry in {name} as well"
    needs_x64 = formats.wide.itemsize == 8 and not has_float64
    return f"{text}.{' That needs jax_enable_x64.' * needs_x64}"


def _of_casts(line: Line, wide: str) -> str:
    """What to write where dtypeguard itself rounds."""
    casts = [*line.casts]
    is_stochastic = not line.primitives.isdisjoint(("jit", "pjit"))
    begin = f"On {line.origin.place}, {shown_casts(casts)} rounds"  # pyright: ignore[reportOptionalMemberAccess]: a cast has a line
    policy = f"write policy=dtypeguard.Policy(compute_dtype={wide}"
    owner = casts[0].owner
    if owner == "apply_updates":
        at_random = "" if is_stochastic else f"write {STOCHASTICALLY}, or "
        return f"{begin} the new params: {at_random}keep them in {wide}."
    if owner == "guard" and casts[0].path.startswith("updates"):
        return f"{begin}: {policy}, updates_dtype={wide}) and {STOCHASTICALLY}."
    if owner == "guard" and is_stochastic:
        return f"{begin} at random: to keep it in {wide}, leave out state_dtype."
    if owner == "guard":
        return f"{begin}: {policy}), which keeps the state in {wide}. {_STORED}"
    return (
        f"{begin}: start it in {wide}, or let it round at random: "
        "dtypeguard.apply_updates(average, change, key=key)."
    )
