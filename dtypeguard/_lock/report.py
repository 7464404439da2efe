"""Says what changed, on which lines, and how to accept it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .._leaves.rows import columns
from .._source.origin import Origin
from .causes import Causes, LockCause, causes
from .compare import Differences, LeafChange
from .step import Function, TracedStep

_MOST = 8  # functions that follow, or leaves of a line

Change = tuple[str, str, str]  # what it is, as locked, and now; "" where there is none


class ToldCause(NamedTuple):
    """A cause as it is told: where it is, in which function, and what changed there."""

    lines: Sequence[Origin]
    function: Function | None
    changes: Sequence[Change]

    @property
    def text(self) -> list[str]:
        """It in lines of text."""
        places = ", ".join(map(str, self.lines))
        name = f" {self.function[1]}" if self.function else ""
        head = f"  {places}{':' * bool(places)}{name}".rstrip()
        code = [f"      {line.code}" for line in self.lines if line.code]
        return [*filter(None, [head]), *code, *(f"    {x}" for x in _rows(self.changes))]

    @property
    def data(self) -> dict[str, Any]:
        """It for JSON."""
        return {
            "lines": [{"file": x.file, "line": x.line, "code": x.code} for x in self.lines],
            "function": _name(self.function),
            "changes": [
                {"what": what.replace("  ", " "), "locked": locked, "now": now}
                for what, locked, now in self.changes
            ],
        }


def told_causes(found: Differences, now: TracedStep) -> list[ToldCause]:
    """The causes of what changed since a lock was written."""
    return [*map(_told, _causes(found, now).causes)]


def report(found: Differences, now: TracedStep, path: str, update: str = "") -> str:
    """What changed since a lock was written."""
    all_causes, functions, leaves = _causes(found, now)
    what = "1 cause" if len(all_causes) == 1 else f"{len(all_causes)} causes"
    what = what if all_causes else "functions moved"
    text = [f"{now.lock.step} is not as locked in {path}: {what}."]
    for cause in all_causes:
        text += _told(cause).text
    for change in found.functions:
        if change.moved_from:
            text.append(f"  {_name(change.moved_from)} moved to {_name(change.function)}")
    if functions:
        shown = [f"{f[1]} ({line})" if line else f[1] for f, line in functions[:_MOST]]
        more = f" and {len(functions) - _MOST} more" if len(functions) > _MOST else ""
        text.append(f"  and so: {', '.join(shown)}{more}")
    if leaves:
        text += ["  and so:", *(f"    {line}" for line in _rows([*_of_leaves(leaves)]))]
    return "\n".join([*text, *[f"If it should be so: {update}"] * bool(update)])


def _causes(found: Differences, now: TracedStep) -> Causes:
    """The causes of what is more than a function that moved."""
    rest = [x for x in found.functions if x.added or x.removed]
    return causes(found._replace(functions=rest), now)


def _told(cause: LockCause) -> ToldCause:
    changes = [*_of_function(cause), *_of_leaves(cause.leaves)]
    return ToldCause(cause.lines, cause.function, changes)


def _name(function: Function | None) -> str:
    return ":".join(function) if function else ""


def _of_function(cause: LockCause) -> Iterator[Change]:
    """What a function computes otherwise, by kind; what its lines change first."""
    added, removed = cause.change[1:3] if cause.change else ((), ())
    kinds = dict.fromkeys(entry.kind for entry in (*added, *removed))
    # What changes in a backward pass follows from the forward one, if that changes.
    forward = [kind for kind in kinds if not kind.startswith("backward")]
    text = lambda entries, kind: "; ".join(x.text for x in entries if x.kind == kind)
    for kind in sorted(forward or kinds, key=lambda kind: kind not in cause.kinds):
        yield kind, text(removed, kind), text(added, kind)


def _of_leaves(changes: Iterable[LeafChange]) -> Iterator[Change]:
    for change in changes:
        yield f"{change.table}  {change.path}", change.before, change.after


def _rows(changes: Sequence[Change]) -> list[str]:
    rows = [
        (what, f"locked: {before or 'none such'}   now: {after or 'no longer'}")
        for what, before, after in changes[:_MOST]
    ]
    left = changes[_MOST:]
    return columns(rows) + [f"and {len(left)} more of these"] * bool(left)
