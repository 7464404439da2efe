"""What to write for a line that loses precision."""

import jax.numpy as jnp

from .._leaves.casts import casts_text
from .._leaves.dtypes import kind
from .._numbers.formats import Formats
from .._numbers.lines import Line
from .._source.files import package
from .._source.origin import Origin
from .rows import STOCHASTICALLY

_BYTES_OF_FLOAT32 = 4


def advice_of(formats: Formats, has_float64: bool, line: Line, keeps: bool) -> str:
    """Returns what to write for a line.

    Args:
        formats: the dtypes of the audit.
        has_float64: whether JAX makes float64 arrays for the user.
        line: the line.
        keeps: whether what it makes stays wide, or is cast back.
    """
    name = str(formats.wide)
    if {kind(jnp.dtype(dtype)) for dtype in line.dtypes} == {"complex"}:
        # Of two floats of the wide dtype, in bits.
        name = f"complex{16 * formats.wide.itemsize}"
    wide = f"jnp.{name}"
    origin = line.origin
    if origin is None:
        return f"Keep the inputs in {wide}."
    if line.casts:
        return _advice_on_casts(line, origin, wide)
    if not origin.file:
        return (
            f"Call it with {wide}: no line outside JAX leads to "
            f"{', '.join(sorted(line.primitives))}."
        )
    # The user cannot edit these lines of a package, but can call another function.
    if origin.is_of_apply_updates:
        return (
            f"{origin.place} rounds the new params: write {STOCHASTICALLY}, which rounds "
            f"them stochastically, or keep them in {wide}."
        )
    has_16_bits = formats.wide.itemsize <= _BYTES_OF_FLOAT32
    if origin.is_of_optimizer and has_16_bits and not line.only_casts:
        return (
            f"{origin.place} rounds inside the optimizer: write dtypeguard.guard(opt, "
            f"policy=dtypeguard.Policy(compute_dtype={wide})), which computes and "
            f"keeps its state in {formats.wide}."
        )
    text = f"Compute {origin.place} in {name}"
    # A line in a package is not the user's to change; its call is.
    if origin.called_from:
        text = f"Have {package(origin.file)} at {origin.users} compute in {name}"
    elif not keeps:
        text += ", and cast its result back"
    if line.is_in_loop:
        text += f". Where a loop carries it, start the carry in {name} as well"
    if not has_16_bits and not has_float64:
        text += ". That needs jax_enable_x64"
    return f"{text}."


def _advice_on_casts(line: Line, origin: Origin, wide: str) -> str:
    """Returns what to write where dtypeguard rounds, to the nearest or at random."""
    casts = list(line.casts)
    text = f"On {origin.place}, {casts_text(casts)} rounds: keep it in {wide}"
    # Stochastic rounding is one jitted function, and a plain cast is none.
    if not line.primitives.isdisjoint(("jit", "pjit")):
        return f"{text}."
    if casts[0].owner == "guard":
        text += f" by policy=dtypeguard.Policy(compute_dtype={wide})"
    return f"{text}, or let it round at random by {STOCHASTICALLY}."


def rounded_digits(number: float, rounded: float) -> str:
    """Returns a number and what became of it, with as many digits as tell them apart."""
    before = f"{number:.6g}"
    after = f"{rounded:.6g}"
    # Of float32 numbers that differ, nine digits do.
    if before == after:
        before = f"{number:.9g}"
        after = f"{rounded:.9g}"
    return f"{before} -> {after}"
