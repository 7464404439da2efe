"""What to write against a type error of a loop or of branches."""

import itertools
import os
from collections.abc import Container, Iterable, Sequence

from jax import tree_util

from .._find.drift import Drift
from .._leaves.dtypes import dtype_of, fits, kind
from .._leaves.files import is_installed, package, short_path
from .._leaves.rows import lost, return_as, type_text
from .._leaves.types import Aval, DType
from .._program.origins import Origin, callers, frame_of, is_update, origin_of_frame
from .branches import Variant
from .control_flow import Call
from .loops import can_start_as_returned, loop_of
from .paths import is_users_function


def loop_advice(call: Call, found: Sequence[Drift]) -> list[str]:
    """What to write where leaves of a carry come back in another type."""
    loop = loop_of(call)
    is_of_jax = loop is not None and loop.is_of_jax
    if is_of_jax or _is_of_package(call, found):
        return [_advice_on_others(call, found, is_of_jax)]
    reshaped = [each for each in found if each.avals[0].shape != each.avals[1].shape]
    castable = [each for each in found if each.is_castable and each not in reshaped]
    advice = []
    if _is_of_optimizer(call, [each.origin for each in found]):
        advice.append("Wrap the optimizer: dtypeguard.guard(opt).")
    elif castable:
        advice.append(_cast_advice(call, castable))
    others = [each for each in found if each not in castable]
    can_start = not others or can_start_as_returned(call) is not False
    for each in others:
        if each in reshaped:
            before, after = map(type_text, each.avals)
            ways = [f"return {each.path} as {before}", f"start it as {after}"]
        else:
            before, after = (aval.dtype for aval in each.avals)
            cast = return_as(before, after)
            start = f"start {each.path} as {after}{lost(before, after)}"
            ways = [start, cast] if can_start else [f"for {each.path} {cast}"]
        ways = ways if can_start else ways[:1]
        text = ", or ".join(ways)
        advice.append(f"{text[0].upper()}{text[1:]}.")
    return advice


def _cast_advice(call: Call, castable: Sequence[Drift]) -> str:
    """What to guard, and where to cast instead."""
    dtypes = dict.fromkeys(str(each.avals[0].dtype) for each in castable)
    casts = " or ".join(f"x.astype(jnp.{dtype})" for dtype in dtypes)
    losses = dict.fromkeys(lost(*(x.dtype for x in each.avals[::-1])) for each in castable)
    casts += "".join(losses)
    lines = [each.origin for each in castable if each.origin]
    guard = ""
    if not is_installed(call.caller_file):
        guard = f"Write {_guarded(call)}"
    elif frame := next((line.outermost for line in lines if line.outermost), None):
        guard = f"Guard what you give to {package(call.caller_file)}: "
        guard += _guard_of(call, frame.function)
    own = [line.users for line in lines if _is_own(line)]
    if not own:  # no line that the user could edit
        return f"{guard}." if guard else _advice_on_others(call, castable)
    named = list(dict.fromkeys(map(str, own)))
    if all(line.called_from is None for line in lines):
        where = f"on the line{'s that are' if len(named) > 1 else ' that is'} named"
    else:
        where = f"what {' and '.join(named)} compute{'s' * (len(named) == 1)}"
    return f"{guard}, or cast {where}: {casts}." if guard else f"Cast {where}: {casts}."


def _is_own(line: Origin | None) -> bool:
    """Whether a line, or the one that called its package, is in the user's own code."""
    return line is not None and not is_installed(line.users.file)


def _guard_of(call: Call, function: str) -> str:
    """A guard of a function by its qualified name; as a decorator, of a method."""
    owner, _, name = function.rpartition(".")
    owner = owner.rpartition(".")[2]
    is_method = owner.isidentifier()
    if short_path(call.caller_file).startswith(os.path.join("flax", "core")):
        position = int(not is_method)  # Flax Linen gives it the module first
    else:
        # Flax NNX lets the user choose it for a scan.
        chosen = getattr(call.arguments.get("f"), "input_carry_argnum", 0)
        position = 1 if call.name == "fori_loop" else chosen if type(chosen) is int else 0
    carry = f"carry={position}" if position else ""
    if is_method:
        return f"@dtypeguard.guard_step{carry and f'({carry})'} on {owner}.{name}"
    return f"dtypeguard.guard_step({', '.join(filter(None, [_argument(name), carry]))})"


def _argument(name: str) -> str:
    """What to write for a function: its name, or "body" where it has none."""
    return name if name.isidentifier() else "body"


def _guarded(call: Call) -> str:
    """The call with its body guarded."""
    loop = loop_of(call)
    name = _argument(getattr(getattr(loop, "body", None), "__name__", ""))
    before, argument, after = {
        "scan": ("", "", ", init, xs"),
        "while_loop": ("cond_fun, ", "", ", init_val"),
        "fori_loop": ("lower, upper, ", ", carry=1", ", init_val"),
    }[call.name]
    module = "eqx.internal" if call.is_equinox else "lax"
    return f"{module}.{call.name}({before}dtypeguard.guard_step({name}{argument}){after})"


def _is_of_package(call: Call, found: Sequence[Drift]) -> bool:
    """Whether a package wrote a loop, and no line of the user's runs in it."""
    lines = [each.origin for each in found]
    return (
        is_installed(call.caller_file)
        and not _is_of_optimizer(call, lines)
        and all(each.kind == "dtype" for each in found)
        and not any(line and line.outermost for line in lines)
    )


def _advice_on_others(call: Call, found: Sequence[Drift], is_of_jax: bool = False) -> str:
    """What to give to a function of JAX or of a package that contains the loop."""
    pairs = [[aval.dtype for aval in each.avals] for each in found]
    # A package may start the loop in a type of its own, which what it is given has to have.
    is_meant = not is_of_jax and all(x.is_castable and _is_own(x.cause) for x in found)
    # The wider type loses nothing, whichever of the two the loop starts with.
    is_narrowed = lambda old, new: fits(old, new) and old.itemsize > new.itemsize
    pairs = [pair[::-1] if is_meant or is_narrowed(*pair) else pair for pair in pairs]
    return _give(call, [new for _, new in pairs], {old for old, _ in pairs})


def _give(call: Call, dtypes: Iterable[DType], wrong: Container[DType] = ()) -> str:
    """Says in which dtypes to give what, to the function that contains a call."""
    function, arguments = call.given()
    names = [
        name
        for name, value in arguments.items()
        if any(dtype_of(leaf) in wrong for leaf in tree_util.tree_leaves(value))
    ]
    dtypes = dict.fromkeys(map(str, dtypes))
    casts = " or ".join(f"x.astype(jnp.{dtype})" for dtype in dtypes)
    what = f"its {' and its '.join(names)}" if names else "arrays"
    line = origin_of_frame(call.caller).called_from if call.caller else None
    if line is not None and is_installed(call.caller_file):
        function, what = package(call.caller_file), f"its arrays at {line}"
    return f"Give {function or 'JAX'} {what} as {' or '.join(dtypes)}: {casts}."


def branch_advice(call: Call, leaves: Sequence[Sequence[Variant]]) -> list[str]:
    """What to write where branches return leaves in different types."""
    flat = [each for leaf in leaves for each in leaf]
    if _is_of_optimizer(call, [each.origin for each in flat if each.is_made]):
        return ["Wrap the optimizer: dtypeguard.guard(opt)."]
    one, other = leaves[0][:2]
    if not one.path.startswith("result"):  # the branches return nothing: they work in place
        changed = " and ".join(
            f"dtypeguard.guard_step({each.branch})" for each in (one, other) if each.is_made
        )
        return [f"Guard what you give to {package(call.caller_file)}: {changed}."]
    if one.aval.shape != other.aval.shape:
        return ["Return one shape from all branches."]
    if is_installed(call.caller_file) and not _has_users_branch(call):
        return [_advice_on_packages(call, one, other)]
    made = [each for each in (one, other) if each.is_made]
    kept = [each for each in (one, other) if not each.is_made]
    if made and kept:  # the value that was there before has the type that is meant
        return [_kept_advice(made[0], kept[0])]
    promoted = [each for each in (one, other) if each.cause]
    ways = [
        f"{each.branch} return x.astype(jnp.{to.aval.dtype}){_lost(each, to)}"
        for each, to in ((one, other), (other, one))
        if len(promoted) != 1 or each is promoted[0]
        if _fits(each.aval, to.aval) or kind(to.aval.dtype) in ("float", "complex")
    ]
    return [f"Let {' or '.join(ways)}."] if ways else []


def _has_users_branch(call: Call) -> bool:
    """Whether the user gave a branch to the package that made a call."""
    outer = [] if call.caller is None else [call.caller, *callers(call.caller)]
    own = itertools.takewhile(lambda frame: is_installed(frame.f_code.co_filename), outer)
    given = [call.arguments, *(frame.f_locals for frame in own)]
    found = [each.get(name) for each in given for name in ("true_fun", "false_fun")]
    lists = [each.get("branches") for each in given]
    found += itertools.chain(*(each for each in lists if isinstance(each, (list, tuple))))
    return any(map(is_users_function, found))


def _advice_on_packages(call: Call, one: Variant, other: Variant) -> str:
    """What to write where a package wrote the branches."""
    for each, to in ((one, other), (other, one)):
        if each.origin and each.cause and _is_own(each.origin):
            cast = f"x.astype(jnp.{to.aval.dtype}){_lost(each, to)}"
            return f"Cast what {each.origin.users} computes: {cast}."
    return _give(call, [(other if _fits(one.aval, other.aval) else one).aval.dtype])


def _kept_advice(made: Variant, kept: Variant) -> str:
    """What to write where one branch computes a leaf and the other keeps its value."""
    if _fits(made.aval, kept.aval):
        return (
            f"Let {made.branch} return x.astype(jnp.{kept.aval.dtype}){_lost(made, kept)}."
        )
    cast = f"jnp.asarray(x, jnp.{made.aval.dtype}){_lost(kept, made)}"
    if kept.name:
        return f"Let the first value of {kept.name} be {made.aval.dtype}: {cast}."
    return f"Let {kept.branch} return {cast}."


def _lost(source: Variant, target: Variant) -> str:
    return lost(source.aval.dtype, target.aval.dtype)


def _is_of_optimizer(call: Call, origins: Sequence[Origin | None]) -> bool:
    """Whether an Optax optimizer is at fault: it made the call, or it has all the lines."""
    if call.caller is not None:
        frames = map(frame_of, itertools.chain([call.caller], callers(call.caller)))
        own = itertools.takewhile(lambda frame: is_installed(frame.file), frames)
        if is_update(own):
            return True
    lines = [origin for origin in origins if origin is not None]
    return bool(lines) and all(line.is_of_optimizer for line in lines)


def _fits(source: Aval, target: Aval) -> bool:
    return fits(source.dtype, target.dtype)
