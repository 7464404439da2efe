"""What a report says of losses: which lines lose precision, and which to compute wider."""

import os
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._leaves.casts import Cast, shown as shown_casts
from .._leaves.dtypes import kind
from .._leaves.files import package, short_path
from .._program.origins import Origin
from .measure import Measures
from .pair import Paired
from .report import LineLoss
from .values import Line

_LEAST_SHARE = 0.01
_APPLY_UPDATES = (
    os.path.join("optax", "_src", "update.py"),
    os.path.join("equinox", "_update.py"),
)
_STOCHASTICALLY = "dtypeguard.apply_updates(params, updates, key=key)"


class Losses(NamedTuple):
    """The lines that lose precision: see `PrecisionReport`."""

    losses: tuple[LineLoss, ...]
    fix: tuple[LineLoss, ...]
    left: float
    explained: float | None


def line_losses(
    measures: Measures,
    has_float64: bool,
    tolerance: float | None,
    show_status: Callable[[str], None],
) -> Losses:
    """The lines with more than a hundredth of the error, the most important first.

    Args:
        measures: of the program.
        has_float64: whether JAX makes a float64 array for the caller who names that dtype.
        tolerance: the error that the fix has to reach.
        show_status: called with what it is about to do.
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
    order = sorted(numbers, key=lambda number: -weight(number))
    show_status("looking for a small set of lines")
    important = [number for number in order if abs(shares[number]) > _LEAST_SHARE]
    fix = measures.fix(order, important, tolerance)
    losses = {}
    for number in order:
        if number in important or number in fix:
            line, meant = measures.paired.lines[number], measures.constant(number)
            losses[number] = LineLoss(
                origin=line.origin,
                share=shares[number],
                alone=measures.alone(number),
                left=measures.left([number]),
                dtypes=tuple(sorted(line.dtypes)),
                constant=None if meant is None else _rounded(meant, line.constants[meant]),
                remedy=_remedy(line, measures.paired, has_float64),
                cast=shown_casts([*line.casts]) if line.casts else None,
            )
    return Losses(
        tuple(losses.values()),
        tuple(losses[number] for number in fix),
        measures.left(fix),
        float(sum(shares)) if is_finite else None,
    )


def _rounded(meant: float, number: float) -> str:
    """A number and what became of it, with digits in which they differ."""
    texts = [f"{meant:.{digits}g} -> {number:.{digits}g}" for digits in (6, 9, 17)]
    return next((t for t in texts if len({*t.split(" -> ")}) == 2), texts[0])


def _remedy(line: Line, paired: Paired, has_float64: bool) -> str:
    """What to write for a line."""
    formats = paired.formats
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
    is_apply = "apply_update" in line.origin.function  # and not an average
    if is_apply and short_path(line.origin.file) in _APPLY_UPDATES:
        return (
            f"{where} rounds the new params: write {_STOCHASTICALLY}, which rounds them "
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
        if dtype := _narrowing(line.origin.users, paired):
            how = f", by dtype={wide}" if package(line.origin.file) == "flax" else ""
            told = f"casts what it is given to {dtype}: have it compute in {name}{how}."
            return f"{given} {told}{needs_x64}"
        return f"Give {given} arrays of {name}: x.astype({wide}).{needs_x64}"
    if line.primitives == {"dot_general"}:
        how = f"jnp.dot(..., preferred_element_type={wide})"
    else:
        how = f"x.astype({wide})"
        if "iota" in line.primitives:  # a cast cannot restore what `iota` rounded
            how = f"dtype={wide}"
    text = f"Compute {where} in {name}, and keep what it makes so: {how}."
    if is_cast:
        text = f"Leave out the cast on {where}, or cast to {wide}."
    if line.is_in_loop:
        text += f" Where a loop carries it, start the carry in {name} as well."
    return text + needs_x64


def _narrowing(users: Origin, paired: Paired) -> str | None:
    """The dtype to which a package, called on a line, casts what it is given."""
    for line in paired.lines:
        origin = line.origin
        if origin is None or origin.called_from is None or origin.users != users:
            continue
        if line.only_casts and line.primitives:
            dtypes = sorted(line.dtypes, key=lambda name: jnp.dtype(name).itemsize)
            if jnp.dtype(dtypes[0]).itemsize < paired.formats.wide.itemsize:
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
        at_random = "" if is_stochastic else f"write {_STOCHASTICALLY}, or "
        return f"{begin} the new params: {at_random}keep them in {wide}."
    policy = f"dtypeguard.Policy(compute_dtype={wide}"
    if owner == "guard" and casts[0].path.startswith("updates"):
        return (
            f"{begin}: write policy={policy}, updates_dtype={wide}) and {_STOCHASTICALLY}."
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
