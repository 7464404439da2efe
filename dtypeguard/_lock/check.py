"""Locks a step, compares it with a lock in a file, and says what changed on which lines."""

import contextlib
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .._carry.carry import carry_of
from .._leaves.compat import check_release, set_x64
from .._leaves.rows import columns
from .._leaves.types import Step
from .compare import Causes, Differences, LeafChange, LockCause, causes, differences
from .computations import Function, code_of
from .step import LockedCall, TracedStep, name_of_file, traced_step
from .text import LockError, read

_MOST = 8  # functions that follow, or leaves of a line

Row = tuple[str, str, str]  # what it is, as locked, and now; "" where there is none


class Locked(NamedTuple):
    """A step as it is now, beside the lock in a file."""

    now: TracedStep
    path: str
    found: Differences

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return not (self.found.functions or self.found.leaves)

    def report(self, update: str = "") -> str:
        """What differs, cause by cause; ends with how to accept it."""
        found, functions, leaves = self.causes()
        count = "1 cause" if len(found) == 1 else f"{len(found)} causes"
        count = count if found else "functions moved"
        text = [f"{self.now.lock.step} is not as locked in {self.path}: {count}."]
        for cause in found:
            text += text_of_cause(cause)
        for change in self.found.functions:
            if change.moved_from:
                text.append(
                    f"  {_name(change.moved_from)} moved to {_name(change.function)}"
                )
        if functions:
            shown = ", ".join(name for _, name in functions[:_MOST])
            left = len(functions) - _MOST
            text.append(f"  and so: {shown}{f' and {left} more' * (left > 0)}")
        if leaves:
            text += ["  and so:", *(f"    {x}" for x in _columns(_of_leaves(leaves)))]
        return "\n".join([*text, *[f"If it should be so: {update}"] * bool(update)])

    def causes(self) -> Causes:
        """The causes of what is more than a function that moved."""
        rest = [x for x in self.found.functions if x.added or x.removed]
        return causes(self.found._replace(functions=rest), self.now)


def text_of_cause(cause: LockCause) -> list[str]:
    """A cause in lines of text: where it is, its source, and what changed there."""
    places = ", ".join(map(str, cause.lines))
    function = f" {cause.change.function[1]}" if cause.change else ""
    head = f"  {places}{':' * bool(places)}{function}".rstrip()
    code = [f"      {line.code}" for line in cause.lines if line.code]
    return [*filter(None, [head]), *code, *(f"    {x}" for x in _columns(_rows(cause)))]


def data_of_cause(cause: LockCause) -> dict[str, Any]:
    """A cause for JSON."""
    return {
        "lines": [{"file": x.file, "line": x.line, "code": x.code} for x in cause.lines],
        "function": _name(cause.change.function) if cause.change else "",
        "changes": [
            {"what": what.replace("  ", " "), "locked": locked, "now": now}
            for what, locked, now in _rows(cause)
        ],
    }


def _name(function: Function) -> str:
    return ":".join(function)


def _rows(cause: LockCause) -> list[Row]:
    """What a function computes otherwise, by kind; leaves."""
    added, removed = cause.change[1:3] if cause.change else ((), ())
    kinds = dict.fromkeys(entry.kind for entry in (*added, *removed))
    # What changes in a backward pass follows from the forward one, if that changes.
    forward = [kind for kind in kinds if not kind.startswith("backward")]
    text = lambda entries, kind: "; ".join(x.text for x in entries if x.kind == kind)
    rows = [(x, text(removed, x), text(added, x)) for x in forward or kinds]
    return rows + _of_leaves(cause.leaves)


def _of_leaves(changes: Iterable[LeafChange]) -> list[Row]:
    return [(f"{x.table}  {x.path}", x.before, x.after) for x in changes]


def _columns(rows: Sequence[Row]) -> list[str]:
    shown = [
        (what, f"locked: {before or 'none such'}   now: {after or 'no longer'}")
        for what, before, after in rows[:_MOST]
    ]
    return columns(shown) + [f"and {len(rows) - _MOST} more of these"] * (len(rows) > _MOST)


def lock_of(
    step: Step,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    path: str | None,
    x64: bool | None = None,
    owner: str = "lock",
) -> TracedStep:
    """What a step computes in now."""
    check_release(owner)
    flag = contextlib.nullcontext() if x64 is None else set_x64(x64)
    folder = os.path.dirname(os.path.abspath(path or "lock"))
    with flag, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the program warns when it runs
        place = carry_of(owner, step)._replace(places=())
        call = LockedCall(step, place, args, dict(kwargs))
        name, code = place.step, code_of(step)
        if code is not None:
            file = name_of_file(code.co_filename, folder)
            name = f"{file}:{code.co_qualname.replace('<locals>.', '')}"
        return traced_step(call, step, name, folder)


def compared(now: TracedStep, path: str) -> Locked:
    """A step beside the lock in a file."""
    lock = read(path)
    found = differences(lock, now)
    is_other = found.leaves or any(x.added or x.removed for x in found.functions)
    if lock.step != now.lock.step and is_other:  # not only another name
        raise LockError(
            f"{path} is the lock of {lock.step}, and this is {now.lock.step}. Name its own "
            f"file, or remove {path} if {lock.step} is gone."
        )
    return Locked(now, path, found)
