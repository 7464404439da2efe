"""What to write for a line that loses precision."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from .._leaves.casts import Cast, shown as shown_casts
from .._leaves.dtypes import kind
from .._leaves.rows import cast_text
from .._lines.equations import Written
from .._numbers.nodes import Node
from .._numbers.program import NumericProgram
from .._source.files import package
from .._source.origin import Origin
from .loss import STOCHASTICALLY
from .operands import widened
from .typed import with_keyword


def remedy_of(
    number: int,
    program: NumericProgram,
    has_float64: bool,
    keeps: bool,
    mixed: Sequence[Node] = (),
) -> str:
    """What to write for a line.

    Args:
        number: that of the line.
        program: its program.
        has_float64: whether JAX makes a float64 array for the caller who names that dtype.
        keeps: whether its result stays wide, and is not cast back.
        mixed: the equations that then have wide and narrow operands, and take no such.
    """
    text = _remedy_of(number, program, has_float64, keeps)
    places = {f"{x.name} on {o.place}" for x in mixed if (o := Written(x.stack).origin)}
    if not places:
        return text
    *_, last = every = sorted(places)
    several = len(every) - 1
    more = f" and {several} more" if several else ""
    return f"{text} Cast the other operands of {last}{more} as well: it takes one dtype."


def _remedy_of(number: int, program: NumericProgram, has_float64: bool, keeps: bool) -> str:
    line, formats = program.lines[number], program.formats
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
    nodes = [x for x in program.block.all_nodes() if x.line == number]
    if line.primitives == {"dot_general"}:
        products = [x.stack for x in nodes if x.name == "dot_general" and not x.is_backward]
        calls = {call for stack in products for call in Written(stack).calls[:1]}
        made = with_keyword(calls, "preferred_element_type", wide)
        how = " and ".join(made or [f"jnp.dot(..., preferred_element_type={wide})"])
    elif "iota" in line.primitives:  # a cast cannot restore what `iota` rounded
        how = f"dtype={wide}"
    else:
        how = " and ".join(widened(nodes, name, keeps)) or cast_text(name)
    then = "keep what it makes so" if keeps else "cast the result back"
    text = f"Compute {where} in {name}, and {then}: {how}."
    if line.is_narrowed and line.primitives:
        text = f"Keep {where} in {name}."
    elif is_cast:
        text = f"Leave out the cast on {where}, or cast to {wide}."
    if line.is_in_loop:
        text += f" Where a loop carries it, start the carry in {name} as well."
    return text + needs_x64


def _narrowing(users: Origin, program: NumericProgram) -> str | None:
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
