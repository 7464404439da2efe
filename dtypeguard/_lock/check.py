"""A lock in a file: written, read, and compared with a step; what changed, line by line."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._leaves.table import columns
from .compare import Causes, FunctionChange, LeafChange, LockCause, causes, differences
from .computations import KINDS, LockEntry
from .step import TABLES, Lock, TracedStep

_FORMAT = 2
_END = "# End of the lock."
_COUNT = re.compile(r"(.*) \((\d+)\)")
_MOST = 8  # functions that follow, or leaves of a line


class LockError(ValueError):
    """A lock that cannot be used; the message says what to do."""


def text_of(lock: Lock) -> str:
    """The lock as TOML."""
    lines = [
        f"# What {lock.step} computes in, by function. Written by `dtypeguard lock`.",
        "# `bfloat16 @ bfloat16 -> float32 (2)`: what two calls take, and what they give; "
        "one type: both.",
        f"format = {_FORMAT}",
        f"step = {_quoted(lock.step)}",
    ]
    for (file, function), entries in lock.functions.items():
        lines += ["", f"[{_quoted(file)}.{_key(function)}]"]
        for kind in KINDS:
            counts = Counter(sorted(x.text for x in entries if x.kind == kind))
            items = [_quoted(f"{x} ({n})" if n > 1 else x) for x, n in counts.items()]
            lines += [f"{kind} = [{', '.join(items)}]"] * bool(items)
    for table in TABLES:
        if types := getattr(lock, table):
            lines += ["", f"[{table}]"]
            lines += [f"{_key(path)} = {_quoted(name)}" for path, name in types.items()]
    return "\n".join([*lines, "", _END, ""])


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def read(path: str) -> Lock:
    """Reads the lock in a file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        data = tomllib.loads(text)
        if (known := data.get("format")) != _FORMAT:
            raise ValueError(f"it has format {known}; this dtypeguard reads {_FORMAT}")
        if not text.rstrip().endswith(_END):
            raise ValueError("its last line is missing")
        return _lock(data)
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror}."
        raise LockError(f"{reason} Write it with --out {path}.") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # also of TOML
        raise LockError(
            f"{path} cannot be used: {type(error).__name__}: {error}. Restore it, or "
            "remove it and write anew; in a merge conflict take either side and update."
        ) from None


def _lock(data: dict[str, Any]) -> Lock:
    tables = {name: dict(data.get(name, {})) for name in TABLES}
    functions = {
        # Other keys are for what later versions say of a function.
        (file, function): [
            LockEntry(kind, text)
            for kind in KINDS
            for item in kinds.get(kind, ())
            for text in _repeated(item)
        ]
        for file, inside in data.items()
        if file not in (*TABLES, "format", "step")
        for function, kinds in inside.items()
    }
    return Lock(str(data["step"]), functions, **tables)


def _repeated(item: str) -> list[str]:
    counted = _COUNT.fullmatch(item)
    return [counted[1]] * int(counted[2]) if counted else [item]


class Locked(NamedTuple):
    """A step as it is now, beside the lock in a file."""

    now: TracedStep
    path: str
    functions: list[FunctionChange]
    leaves: list[LeafChange]

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return not (self.functions or self.leaves)

    def causes(self) -> Causes:
        """What changed, line by line."""
        return causes(self.functions, self.leaves, self.now)

    def report(self, update: str = "") -> str:
        """What differs, cause by cause; ends with how to accept it."""
        found, functions, leaves = self.causes()
        count = f"{len(found)} cause{'s' * (len(found) > 1)}"
        count = count if found else "functions moved"
        text = [f"{self.now.lock.step} is not as locked in {self.path}: {count}."]
        for cause in found:
            text += text_of_cause(cause)
        moved = [(x.moved_from, ":".join(x.function)) for x in self.functions]
        text += [f"  {':'.join(old)} moved to {new}" for old, new in moved if old]
        if functions:
            shown = ", ".join(name for _, name in functions[:_MOST])
            left = len(functions) - _MOST
            text.append(f"  and so: {shown}{f' and {left} more' * (left > 0)}")
        if leaves:
            text += ["  and so:", *(f"    {x}" for x in _columns([x[:3] for x in leaves]))]
        return "\n".join([*text, *[f"If it should be so: {update}"] * bool(update)])


def compared(now: TracedStep, path: str) -> Locked:
    """A step beside the lock in a file."""
    lock = read(path)
    functions, leaves = differences(lock, now)
    is_other = leaves or any(x.added or x.removed for x in functions)
    if lock.step != now.lock.step and is_other:  # not only another name
        raise LockError(
            f"{path} is the lock of {lock.step}, and this is {now.lock.step}. Name its own "
            f"file, or remove {path} if {lock.step} is gone."
        )
    return Locked(now, path, functions, leaves)


_Row = tuple[str, str, str]  # what it is, as locked, and now; "" where there is none


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
        "function": ":".join(cause.change.function) if cause.change else "",
        "changes": [dict(zip(("what", "locked", "now"), row)) for row in _rows(cause)],
    }


def _rows(cause: LockCause) -> list[_Row]:
    """What a function computes otherwise, by kind; leaves."""
    added, removed = cause.change[1:3] if cause.change else ((), ())
    kinds = dict.fromkeys(entry.kind for entry in (*added, *removed))
    # What changes in a backward pass follows from the forward one, if that changes.
    forward = [kind for kind in kinds if not kind.startswith("backward")]
    text = lambda entries, kind: "; ".join(x.text for x in entries if x.kind == kind)
    rows = [(x, text(removed, x), text(added, x)) for x in forward or kinds]
    return rows + [x[:3] for x in cause.leaves]


def _columns(rows: Sequence[_Row]) -> list[str]:
    shown = [
        (what, f"locked: {before or 'none such'}   now: {after or 'no longer'}")
        for what, before, after in rows[:_MOST]
    ]
    return columns(shown) + [f"and {len(rows) - _MOST} more of these"] * (len(rows) > _MOST)
