"""Says what changed, on which lines, and how to accept it."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from .._leaves.rows import columns
from .._source.origin import Origin
from .causes import LockCause, causes
from .compare import Differences, FunctionChange, LeafChange
from .step import Function, TracedStep

_MOST = 8  # functions that follow, or leaves of a line


class ToldCause(NamedTuple):
    """A cause as it is told line by line.

    Attributes:
        lines: where it is.
        text: what changed there.
        data: the same, for JSON.
    """

    lines: Sequence[Origin]
    text: list[str]
    data: dict[str, Any]


def told_causes(found: Differences, now: TracedStep) -> list[ToldCause]:
    """The causes of what changed since a lock was written."""
    rest = [x for x in found.functions if x.added or x.removed]
    all_causes, _, _ = causes(found._replace(functions=rest), now)
    return [ToldCause(x.lines, _cause(x), _data(x)) for x in all_causes]


def _data(cause: LockCause) -> dict[str, Any]:
    changes = _changes(cause.change, cause.kinds) if cause.change else []
    changes += [(f"{x.table} {x.path}", x.before, x.after) for x in cause.leaves]
    return {
        "lines": [{"file": x.file, "line": x.line, "code": x.code} for x in cause.lines],
        "function": _name(cause.function),
        "changes": [dict(zip(("what", "locked", "now"), change)) for change in changes],
    }


def report(found: Differences, now: TracedStep, path: str, update: str = "") -> str:
    """What changed since a lock was written."""
    moved = [x for x in found.functions if x.moved_from]
    rest = [x for x in found.functions if x.added or x.removed]
    rest = found._replace(functions=rest)
    all_causes, functions, leaves = causes(rest, now)
    what = "1 cause" if len(all_causes) == 1 else f"{len(all_causes)} causes"
    text = [f"{now.lock.step} is not as locked in {path}: {what}."] if all_causes else []
    if not all_causes:
        text = [f"{now.lock.step} is not as locked in {path}: functions moved."]
    for cause in all_causes:
        text += _cause(cause)
    for change in moved:
        text.append(f"  {_name(change.moved_from)} moved to {_name(change.function)}")
    if functions:
        shown = [f"{f[1]} ({line})" if line else f[1] for f, line in functions[:_MOST]]
        more = f" and {len(functions) - _MOST} more" if len(functions) > _MOST else ""
        text.append(f"  and so: {', '.join(shown)}{more}")
    if leaves:
        text += ["  and so:", *(f"    {line}" for line in _leaf_lines(leaves))]
    if update:
        text.append(f"If it should be so: {update}")
    return "\n".join(text)


def _name(function: Function | None) -> str:
    return ":".join(function) if function else ""


def _cause(cause: LockCause) -> list[str]:
    places = ", ".join(map(str, cause.lines))
    name = f" {cause.function[1]}" if cause.function else ""
    head = f"  {places}{':' * bool(places)}{name}".rstrip()
    text = [head] if head else []
    text += [f"      {line.code}" for line in cause.lines if line.code]
    rows = _rows(cause.change, cause.kinds) if cause.change else []
    rows = [f"    {line}" for line in columns(rows)]
    return text + rows + [f"    {line}" for line in _leaf_lines(cause.leaves)]


def _rows(change: FunctionChange, first: Collection[str]) -> list[tuple[str, str]]:
    return [
        (kind, f"locked: {before or 'none such'}   now: {after or 'no longer'}")
        for kind, before, after in _changes(change, first)
    ]


def _changes(change: FunctionChange, first: Collection[str]) -> list[tuple[str, str, str]]:
    """What a function computes otherwise, by kind: as locked, and now."""
    kinds = dict.fromkeys(entry.kind for entry in (*change.added, *change.removed))
    # What changes in a backward pass follows from the forward one, if that changes.
    forward = [kind for kind in kinds if not kind.startswith("backward")]
    text = lambda entries, kind: "; ".join(x.text for x in entries if x.kind == kind)
    return [
        (kind, text(change.removed, kind), text(change.added, kind))
        for kind in sorted(forward or kinds, key=lambda kind: kind not in first)
    ]


def _leaf_lines(changes: Sequence[LeafChange]) -> list[str]:
    rows = [
        (
            change.table,
            change.path,
            f"locked: {change.before or 'none such'}   now: {change.after or 'gone'}",
        )
        for change in changes[:_MOST]
    ]
    left = changes[_MOST:]
    return columns(rows) + [f"and {len(left)} more of these"] * bool(left)
