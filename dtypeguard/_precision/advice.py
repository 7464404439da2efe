"""What to write for a line that loses precision: which line to compute in which dtype."""

import jax.numpy as jnp

from .._leaves.casts import shown as shown_casts
from .._leaves.dtypes import kind
from .._numbers.formats import Formats
from .._numbers.lines import Line
from .._source.files import package
from .rows import STOCHASTICALLY

_STORED = (
    'With state_dtype=jnp.bfloat16, rounding="stochastic" it is stored in bfloat16 and '
    "rounded at random."
)


def advice_of(formats: Formats, has_float64: bool, line: Line, keeps: bool) -> str:
    """What to write for a line.

    Args:
        formats: those of its program.
        has_float64: whether JAX makes a float64 array for the caller who names that dtype.
        line: the line.
        keeps: whether its result stays wide, and is not cast back.
    """
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
