"""What a report says of losses: which lines lose precision, and which to compute wider."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._leaves.casts import Cast, shown as shown_casts
from .._leaves.dtypes import kind
from .._leaves.rows import cast_text
from .._numbers.measure import LEFT, Measures
from .._numbers.program import Program
from .._numbers.lines import Line
from .._source.files import package
from .._source.origin import Origin
from .loss import STOCHASTICALLY, LineLoss
from .runs import Runs, WideLines

# As `Measures.fix`.
Search = Callable[[Sequence[int], Sequence[int], float | None], list[int]]
Remedy = Callable[[Line], str]

_LEAST_SHARE = 0.01
# Lines that are wide in a plain run of their own, which is compiled.
_MOST_ALONE = 3


class Losses(NamedTuple):
    """The lines that lose precision: see `PrecisionReport`."""

    losses: tuple[LineLoss, ...]
    fix: tuple[LineLoss, ...]
    mended: float
    left: float
    price: float
    keeps: bool
    left_if_kept: float
    price_if_kept: float
    left_if_cast: float
    price_if_cast: float
    explained: float | None
    lost: float
    loss_scale: float | None
    scaled: float
    left_if_scaled: float
    out_of_range: str | None


def line_losses(
    measures: Measures,
    runs: Runs,
    has_float64: bool,
    tolerance: float | None,
    show_status: Callable[[str], None],
    search: Search | None = None,
    remedy: Remedy | None = None,
) -> Losses:
    """The lines with more than a hundredth of the error, the most important first.

    Args:
        measures: of the program.
        runs: of the same.
        has_float64: whether JAX makes a float64 array for the caller who names that dtype.
        tolerance: the error that the fix has to reach.
        show_status: called with what it is about to do.
        search: finds the lines that are worth computing wider; by default `Measures.fix`.
        remedy: says what to write for a line; by default, to compute it in wide types.
    """
    numbers = range(measures.lines if measures.total else 0)
    shares = []
    for number in numbers:
        show_status(f"measuring line {number + 1} of {measures.lines}")
        shares.append(measures.share(number))
    is_finite = bool(np.isfinite(shares).all())
    if not is_finite:  # what overflows first, then by the error alone
        alone = [measures.alone(number) for number in numbers]
        worst = max((x for x in alone if np.isfinite(x)), default=1.0) or 1.0
        squares = [min(x / worst, 1e3) ** 2 for x in alone]
        shares = [x / (sum(squares) or 1.0) for x in squares]
    # Where roundings cancel, a share depends on the lines before.
    cancel = sum(map(abs, shares)) > 2
    weight = measures.alone if cancel else lambda number: abs(shares[number])
    # A tie is in the order of the source.
    place = lambda origin: ("", 0) if origin is None else (origin.file, origin.line)
    places = [place(line.origin) for line in measures.program.lines]
    order = sorted(numbers, key=lambda n: (-_two_digits(weight(n)), places[n]))
    show_status("looking for a small set of lines")
    important = [number for number in order if abs(shares[number]) > _LEAST_SHARE]
    scaled = runs.scaled()
    if scaled is not None and scaled.error <= allowed(runs, tolerance):  # it costs nothing
        nothing = WideLines(runs.total, runs.left(runs.total), 0.0)
        fix, kept, alone = [], nothing, {}
    else:
        search = search or measures.fix
        fix, kept, alone = _fix(search, runs, order, important, tolerance)
    # What makes no product wide costs nothing, and inputs are not cast back.
    are_lines = None not in (measures.program.lines[number].origin for number in fix)
    cast = WideLines(np.nan, np.nan, np.nan)
    if kept.price > 0 and are_lines:
        cast = runs.with_wide(fix, keeps=False)
    keeps = not (cast.error <= allowed(runs, tolerance) and cast.price < kept.price)
    flipped = runs.flipped(measures.total)
    by_rounding = 1 - flipped
    losses = {}
    for number in order:
        if number in important or number in fix:
            line, meant = measures.program.lines[number], measures.constant(number)
            left = measures.left([number]) * by_rounding + flipped
            mended = alone.get(number)
            losses[number] = LineLoss(
                origin=line.origin,
                share=shares[number] * by_rounding,
                alone=measures.alone(number),
                left=left if mended is None else mended.left,
                price=np.nan if mended is None else mended.price,
                dtypes=tuple(sorted(line.dtypes)),
                constant=None if meant is None else _rounded(meant, line.constants[meant]),
                remedy=remedy(line)
                if remedy
                else _remedy(line, measures.program, has_float64, keeps),
                backward=measures.backward(number),
                cast=shown_casts([*line.casts]) if line.casts else None,
                scope=line.scope,
            )
    return Losses(
        tuple(losses.values()),
        tuple(losses[number] for number in fix),
        *(kept if keeps else cast),
        keeps,
        kept.left,
        kept.price,
        cast.left,
        cast.price,
        float(sum(shares)) * by_rounding if is_finite else None,
        runs.lost,
        None if scaled is None else scaled.scale,
        np.nan if scaled is None else scaled.error,
        np.nan if scaled is None else scaled.left,
        None if scaled is None else scaled.dtype,
    )


def allowed(runs: Runs, tolerance: float | None) -> float:
    """The error that is small enough."""
    if tolerance is not None:
        return tolerance
    return LEFT**0.5 * runs.total if np.isfinite(runs.total) else float(np.finfo(float).max)


def _fix(
    search: Search,
    runs: Runs,
    order: Sequence[int],
    important: Sequence[int],
    tolerance: float | None,
) -> tuple[list[int], WideLines, dict[int, WideLines]]:
    """A small set of lines that is worth computing wider, and plain runs with it.

    The wide values beside a program tell which lines. They do not have the decisions that
    these change: if the plain run is not within the tolerance, more lines are tried. Since
    what a line makes stays wide, one of them may be enough.

    Returns:
        The lines, the plain run with all of them, and those with some of them alone.
    """
    fix, kept = [], WideLines(runs.total, runs.left(runs.total), 0.0)
    bounds = (None,) if tolerance is None else (tolerance, tolerance / 4, 0.0)
    for bound in bounds:
        if tolerance is not None and kept.error <= tolerance:
            break
        tried = search(order, important, bound)
        if tried and tried != fix:
            fix, kept = tried, runs.with_wide(tried, keeps=True)
    if len(fix) == 1:
        return fix, kept, {fix[0]: kept}
    alone = {n: runs.with_wide([n], keeps=True) for n in (fix or important)[:_MOST_ALONE]}
    bound = max(allowed(runs, tolerance), kept.error)
    enough = [n for n, each in alone.items() if n in fix and each.error <= bound]
    if enough:
        best = min(enough, key=lambda n: alone[n].price)
        return [best], alone[best], alone
    return fix, kept, alone


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def _rounded(meant: float, number: float) -> str:
    """A number and what became of it, with digits in which they differ."""
    texts = [f"{meant:.{digits}g} -> {number:.{digits}g}" for digits in (6, 9, 17)]
    return next((t for t in texts if len({*t.split(" -> ")}) == 2), texts[0])


def _remedy(line: Line, program: Program, has_float64: bool, keeps: bool) -> str:
    """What to write for a line, of which the result stays wide or is cast back."""
    formats = program.formats
    name = str(formats.wide)
    if line.dtypes and all(kind(jnp.dtype(each)) == "complex" for each in line.dtypes):
        name = f"complex{16 * formats.wide.itemsize}"
    wide = f"jnp.{name}"
    if line.origin is None:
        return f"Keep the inputs in {wide}."
    if line.casts:
        is_stochastic = not line.primitives.isdisjoint(("jit", "pjit"))
        return _remedy_of_casts(line.origin, [*line.casts], is_stochastic, wide)
    if not line.origin.file:
        made = ", ".join(sorted(line.primitives))
        return f"Call it with {wide}: no line outside JAX leads to {made}."
    where = line.origin.place
    if line.origin.is_of_apply_updates:
        return (
            f"{where} rounds the new params: write {STOCHASTICALLY}, which rounds them "
            f"stochastically, or keep them in {wide}."
        )
    is_narrow = any(jnp.dtype(dtype).itemsize < 4 for dtype in line.dtypes)
    is_cast = line.only_casts and bool(line.primitives)
    if line.origin.is_of_optimizer and is_narrow and not is_cast:
        return (
            f"{where} rounds inside the optimizer: write dtypeguard.guard(opt, policy="
            f"dtypeguard.Policy(compute_dtype={wide})), which computes and keeps its state "
            f"in {formats.wide}. {_STORED}"
        )
    needs = formats.wide == np.float64 and not has_float64
    needs_x64 = " That needs jax_enable_x64." if needs else ""
    if line.origin.called_from:
        given = f"{package(line.origin.file)} at {line.origin.users}"
        if dtype := _narrowing(line.origin.users, program):
            how = f", by dtype={wide}" if package(line.origin.file) == "flax" else ""
            told = f"casts what it is given to {dtype}: have it compute in {name}{how}."
            return f"{given} {told}{needs_x64}"
        return f"Give {given} arrays of {name}: {cast_text(name)}.{needs_x64}"
    if line.primitives == {"dot_general"}:
        how = f"jnp.dot(..., preferred_element_type={wide})"
    else:
        how = cast_text(name)
        if "iota" in line.primitives:  # a cast cannot restore what `iota` rounded
            how = f"dtype={wide}"
    then = "keep what it makes so" if keeps else "cast the result back"
    text = f"Compute {where} in {name}, and {then}: {how}."
    if line.is_narrowed and line.primitives:
        text = f"Keep {where} in {name}."
    elif is_cast:
        text = f"Leave out the cast on {where}, or cast to {wide}."
    if line.is_in_loop:
        text += f" Where a loop carries it, start the carry in {name} as well."
    return text + needs_x64


def _narrowing(users: Origin, program: Program) -> str | None:
    """The dtype to which a package, called on a line, casts what it is given."""
    for line in program.lines:
        origin = line.origin
        if origin is None or origin.called_from is None or origin.users != users:
            continue
        if line.only_casts and line.primitives:
            dtypes = sorted(line.dtypes, key=lambda name: jnp.dtype(name).itemsize)
            if jnp.dtype(dtypes[0]).itemsize < program.formats.wide.itemsize:
                return dtypes[0]
    return None


_STORED = (
    'With state_dtype=jnp.bfloat16, rounding="stochastic" it is stored in bfloat16 and '
    "rounded at random."
)


def _remedy_of_casts(
    origin: Origin, casts: list[Cast], is_stochastic: bool, wide: str
) -> str:
    """What to write where dtypeguard itself rounds."""
    owner = casts[0].owner
    begin = f"On {origin.place}, {shown_casts(casts)} rounds"
    if owner == "apply_updates":
        at_random = "" if is_stochastic else f"write {STOCHASTICALLY}, or "
        return f"{begin} the new params: {at_random}keep them in {wide}."
    policy = f"dtypeguard.Policy(compute_dtype={wide}"
    if owner == "guard" and casts[0].path.startswith("updates"):
        return (
            f"{begin}: write policy={policy}, updates_dtype={wide}) and {STOCHASTICALLY}."
        )
    if owner == "guard" and is_stochastic:
        return f"{begin} at random: to keep it in {wide}, leave out state_dtype."
    if owner == "guard":
        return (
            f"{begin}: write policy={policy}), which keeps the state in {wide}. {_STORED}"
        )
    return (
        f"{begin}: start it in {wide}, or let it round at random: "
        "dtypeguard.apply_updates(average, change, key=key)."
    )
