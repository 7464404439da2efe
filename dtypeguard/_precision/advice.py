"""What to write for a line that loses precision."""

import jax
import jax.numpy as jnp

from .._leaves.casts import casts_text
from .._numbers.lines import Line
from .._source.files import is_installed, package
from .._source.origin import Origin
from .prepared import Prepared
from .rows import STOCHASTICALLY
from .runs import WideRun


def remedy_of(line: Line, fix: WideRun, prepared: Prepared) -> str:
    """Returns what to write for a line of a fix."""
    formats = prepared.formats
    origin = line.origin
    if origin is None:
        return f"Keep the inputs in jnp.{formats.wide}."
    place = str(origin)
    # The user cannot edit a line in a package, but its call.
    if not origin.file:
        place = f"the call of {', '.join(sorted(line.primitives))}"
    elif is_installed(origin.file):
        place = f"the call of {package(origin.file)} at {origin.users}"
    if fix.level is not None:
        return _remedy_of_product(line, origin, fix.level, place)
    # Of complex numbers alone, it is a complex one.
    name = max(str(formats.widened(jnp.dtype(dtype))) for dtype in line.dtypes)
    wide = f"jnp.{name}"
    if line.casts:
        return _remedy_of_casts(line, origin, wide)
    # Of these lines of a package, another function is to be called.
    if origin.is_of_apply_updates:
        return (
            f"{origin.place} rounds the new params: write {STOCHASTICALLY}, which rounds "
            f"them stochastically, or keep them in {wide}."
        )
    has_16_bits = formats.wide == jnp.float32
    # No policy undoes a cast that a user's optimizer writes itself.
    only_casts = line.primitives == {"convert_element_type"} and not origin.called_from
    if origin.is_of_optimizer and has_16_bits and not only_casts:
        return (
            f"{origin.place} rounds inside the optimizer: write dtypeguard.guard(opt, "
            f"policy=dtypeguard.Policy(compute_dtype={wide})), which computes and "
            f"keeps its state in {formats.wide}."
        )
    text = f"Compute {place} in {name}"
    if not fix.keeps:
        text += ", and cast its result back"
    if line.is_in_loop:
        text += f". Where a loop carries it, start the carry in {name} as well"
    if not has_16_bits and not prepared.traced.has_float64:
        text += ". That needs jax_enable_x64"
    return f"{text}."


def _remedy_of_casts(line: Line, origin: Origin, wide: str) -> str:
    """Returns what to write where dtypeguard rounds, to the nearest or at random."""
    casts = list(line.casts)
    text = f"On {origin.place}, {casts_text(casts)} rounds: keep it in {wide}"
    # Stochastic rounding is one jitted function, and a plain cast is none.
    if not line.primitives.isdisjoint(("jit", "pjit")):
        return f"{text}."
    if casts[0].owner == "guard":
        text += f" by policy=dtypeguard.Policy(compute_dtype={wide})"
    return f"{text}, or let it round at random by {STOCHASTICALLY}."


def _remedy_of_product(line: Line, origin: Origin, level: str, place: str) -> str:
    """Returns what to write where a product needs a higher precision."""
    # With a default set, a product has its precision from there, and a context can change
    # it; what it asks for itself, no context changes.
    has_default = getattr(jax.config, "jax_default_matmul_precision", None) is not None
    if line.has_asked and not has_default:
        # A package asks on a line of its own, not where it is called.
        if origin.file:
            place = str(origin)
        return (
            f"On {place}, write precision=jax.lax.Precision.{level}: "
            "it asks for less itself."
        )
    return f'Put `with jax.default_matmul_precision("{level.lower()}"):` around {place}.'
