"""The note on an error over types: every leaf, its types, the lines, and what to write."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from .._leaves.dtypes import fits, kind
from .._leaves.rows import columns, describe
from .branches import Variant, variants
from .control_flow import Call
from .loops import Change, changes, loop_of
from .origins import Origin, is_installed, short


def note(call: Call, message: str) -> str | None:
    """What to say of a call that raised over types; None if nothing is found in it.

    Args:
        call: one that the error passed through.
        message: of the error. It names the types of what was found, or was about
            something else.
    """
    if call.name in ("cond", "switch"):
        leaves = [
            leaf for leaf in variants(call) if _tells(message, leaf[0].aval, leaf[1].aval)
        ]
        return _of_branches(call, leaves) if leaves else None
    found = [each for each in changes(call) if _tells(message, each.before, each.after)]
    return _of_loop(call, found) if found else None


def _of_loop(call: Call, found: Sequence[Change]) -> str:
    leaves = "1 leaf" if len(found) == 1 else f"{len(found)} leaves"
    verb = "comes" if len(found) == 1 else "come"
    return _text(
        f"{leaves} of the carry of {call.name} {verb} back in another type.",
        [
            (
                each.path,
                f"{_type(each.before)} -> {_type(each.after)}",
                str(each.origin or ""),
                f"forced by {each.cause}" if each.cause else "",
            )
            for each in found
        ],
        [line for each in found for line in (each.origin, each.cause)],
        _loop_advice(call, found),
    )


def _of_branches(call: Call, leaves: Sequence[Sequence[Variant]]) -> str:
    number = "1 leaf" if len(leaves) == 1 else f"{len(leaves)} leaves"
    flat = [each for leaf in leaves for each in leaf]
    return _text(
        f"the branches of {call.name} give {number} of their result in different types.",
        [
            (
                each.path if n == 0 else "",
                each.branch,
                _type(each.aval),
                _made(each),
            )
            for leaf in leaves
            for n, each in enumerate(leaf)
        ],
        [each.origin for each in flat],
        _branch_advice(call, flat, leaves[0]),
    )


def _made(each: Variant) -> str:
    if each.origin is not None:
        return str(each.origin)
    return "a constant, or closed over" if each.is_constant else "as it was given"


def _text(
    headline: str,
    rows: Sequence[Sequence[str]],
    origins: Iterable[Origin | None],
    advice: Sequence[str],
) -> str:
    known = dict.fromkeys(filter(None, origins))
    code = [(str(origin), origin.code) for origin in known if origin.code]
    lines = columns(rows) + (columns(code) if code else [])
    return "\n".join([f"dtypeguard: {headline}", *(f"  {line}" for line in lines), *advice])


def _loop_advice(call: Call, found: Sequence[Change]) -> list[str]:
    advice = []
    if _is_optax(call, [each.origin for each in found]):
        advice.append("Wrap the optimizer: dtypeguard.guard(opt).")
    reshaped = [each for each in found if each.before.shape != each.after.shape]
    rest = [each for each in found if each.before.shape == each.after.shape]
    castable = [each for each in rest if _fits(each.after, each.before)]
    if castable and not advice:
        dtypes = dict.fromkeys(str(each.before.dtype) for each in castable)
        casts = " or ".join(f"x.astype(jnp.{dtype})" for dtype in dtypes)
        # What a package calls is not the user's to write.
        guarded = "" if is_installed(call.caller) else f"Write {_guarded(call)}, or cast"
        where = (
            " on the line that is named" if any(each.origin for each in castable) else ""
        )
        advice.append(f"{guarded or 'Cast'}{where}: {casts}.")
    for each in rest:
        if each not in castable:
            advice.append(_other_kind(each.path, each.before.dtype, each.after.dtype))
    advice += [
        f"Return {each.path} as {_type(each.before)}, or start it as {_type(each.after)}."
        for each in reshaped
    ]
    return advice


def _guarded(call: Call) -> str:
    loop = loop_of(call)
    name = getattr(getattr(loop, "body", None), "__name__", "")
    name = name if name.isidentifier() else "body"
    before, argument, after = {
        "scan": ("", "", ", init, xs"),
        "while_loop": ("cond_fun, ", "", ", init_val"),
        "fori_loop": ("lower, upper, ", ", carry=1", ", init_val"),
    }[call.name]
    module = "eqx.internal" if call.is_equinox else "lax"
    return f"{module}.{call.name}({before}dtypeguard.guard_step({name}{argument}){after})"


def _other_kind(path: str, before: Any, after: Any) -> str:
    """What to write for a leaf that no cast within a kind brings back."""
    start = f"Start {path} as {after}"
    if (kind(before), kind(after)) == ("int", "float"):
        return f"{start}, or return jnp.round(x).astype(jnp.{before})."
    if (kind(before), kind(after)) == ("float", "complex"):
        return f"{start}, or return jnp.real(x).astype(jnp.{before})."
    return f"{start}, or return x.astype(jnp.{before})."


def _branch_advice(
    call: Call, flat: Sequence[Variant], leaf: Sequence[Variant]
) -> list[str]:
    if _is_optax(call, [each.origin for each in flat]):
        return ["Wrap the optimizer: dtypeguard.guard(opt)."]
    one, other = leaf[:2]
    if one.aval.shape != other.aval.shape:
        return ["Return one shape from all branches."]
    ways = [
        f"{each.branch} return x.astype(jnp.{to.aval.dtype})"
        for each, to in ((one, other), (other, one))
        if _fits(each.aval, to.aval) or kind(to.aval.dtype) in ("float", "complex")
    ]
    return [f"Let {' or '.join(ways)}."] if ways else []


def _is_optax(call: Call, origins: Sequence[Origin | None]) -> bool:
    """Whether an optimizer of Optax's is at fault: it called, or all lines are its own."""
    files = [origin.file for origin in origins if origin is not None]
    is_own = lambda file: short(file).startswith("optax/")
    return is_own(call.caller) or (bool(files) and all(map(is_own, files)))


def _fits(source: Any, target: Any) -> bool:
    return fits(source.dtype, target.dtype)


def _type(aval: Any) -> str:
    return describe(aval).removesuffix(",weak")


def _tells(message: str, *avals: Any) -> bool:
    """Whether a message has the dtypes, in full as JAX or short as Equinox writes them."""
    return all(
        str(aval.dtype) in message or _abbreviated(str(aval.dtype)) in message
        for aval in avals
    )


def _abbreviated(dtype: str) -> str:
    return re.sub(r"(loat|nt|omplex)(?=\d)", "", dtype.replace("uint", "u"))
