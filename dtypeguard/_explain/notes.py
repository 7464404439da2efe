"""Writes the note on a type error: every leaf, its types, the lines, and what to write."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from .._find.drift import Drift
from .._leaves.rows import columns, rounding, type_text
from .._leaves.types import Aval
from .._program.origins import Origin, origin_of_frame, places
from .advice import branch_advice, loop_advice
from .branches import Variant, variants
from .control_flow import Call
from .loops import drifts, loop_of
from .made import Makers


class _Lined(Protocol):
    """What a note names the lines of."""

    @property
    def origin(self) -> Origin | None: ...
    @property
    def cause(self) -> Origin | None: ...


def note(call: Call, makers: Makers, message: str) -> str | None:
    """A note on a call that raised over types; None if it finds no reason.

    Args:
        call: one that the error passed through.
        makers: of the error.
        message: of the error. It has to name the types in the note; otherwise the error is
            about something else.
    """
    if call.name in ("cond", "switch"):
        leaves = [
            leaf
            for leaf in variants(call, makers)
            if _names(message, leaf[0].aval, leaf[1].aval)
        ]
        return _of_branches(call, leaves) if leaves else None
    found = drifts(call, makers, lambda each: _names(message, *each.avals))
    return _of_loop(call, found) if found else None


def _of_loop(call: Call, found: Sequence[Drift]) -> str:
    verb = "comes" if len(found) == 1 else "come"
    loop = loop_of(call)
    is_of_jax = loop is not None and loop.is_of_jax
    if is_of_jax and call.caller is not None:  # no line in it is anything to the user
        line = origin_of_frame(call.caller)
        found = [dataclasses.replace(each, origin=each.origin or line) for each in found]
    return note_text(
        f"{_counted(found)} of the carry of {call.name} {verb} back in another type.",
        [
            (
                each.path,
                " -> ".join(map(type_text, each.avals)),
                *places(each.origin, each.cause, each.begun),
            )
            for each in found
        ],
        found,
        (str(each.avals[0].dtype) for each in found if each.kind == "dtype"),
        loop_advice(call, found),
    )


def _of_branches(call: Call, leaves: Sequence[Sequence[Variant]]) -> str:
    return note_text(
        f"the branches of {call.name} give {_counted(leaves)} of their result in different "
        "types.",
        [
            (
                each.path if n == 0 else "",
                each.branch,
                type_text(each.aval),
                *_made(each),
            )
            for leaf in leaves
            for n, each in enumerate(leaf)
        ],
        [each for leaf in leaves for each in leaf],
        [str(each.aval.dtype) for leaf in leaves for each in leaf],
        branch_advice(call, leaves),
    )


def _made(each: Variant) -> tuple[str, str]:
    """What a branch returns unchanged, and the lines as a report prints them."""
    what = ""
    if each.is_given:
        what = f"{each.name}, as it was given" if each.name else "as it was given"
    elif each.is_constant:
        what = f"{each.name}, closed over" if each.name else "a constant, or closed over"
    origin, cause, _ = places(each.origin, each.cause)
    return ", ".join(filter(None, [what, origin])), cause


def note_text(
    headline: str,
    rows: Sequence[Sequence[str]],
    found: Sequence[_Lined],
    types: Iterable[str],
    advice: Sequence[str],
) -> str:
    origins = [line for each in found for line in (each.origin, each.cause) if line]
    advice = [*advice, rounding(types, " ".join(advice))]
    users = dict.fromkeys(line.users for line in origins)
    code = [(str(line), line.code) for line in users if line.code]
    lines = columns(rows) + (columns(code) if code else [])
    return "\n".join(
        [f"dtypeguard: {headline}", *(f"  {line}" for line in lines), *filter(None, advice)]
    )


def _counted(found: Sequence[object]) -> str:
    return "1 leaf" if len(found) == 1 else f"{len(found)} leaves"


def _names(message: str, *avals: Aval) -> bool:
    """Whether a message names the dtypes, in full like JAX or abbreviated like Equinox."""
    return all(
        str(aval.dtype) in message or _abbreviated(str(aval.dtype)) in message
        for aval in avals
    )


def _abbreviated(dtype: str) -> str:
    return re.sub(r"(loat|nt|omplex)(?=\d)", "", dtype.replace("uint", "u"))
