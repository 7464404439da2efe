"""A step beside the lock in a file: what changed, cause by cause, as text and JSON."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._leaves.table import columns
from .compare import FunctionChange, LockCause, LockCauses, TypesChange, causes, differences
from .lock_file import LockError, read_lock
from .step import TracedStep

# Functions that follow, or leaves of a line, that are shown.
_MOST_LISTED = 8


class Locked(NamedTuple):
    """A step as it is now, beside the lock in a file."""

    now: TracedStep
    path: str
    functions: list[FunctionChange]
    leaves: list[TypesChange]

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return not (self.functions or self.leaves)

    def causes(self) -> LockCauses:
        """Returns what changed, line by line."""
        return causes(self.functions, self.leaves, self.now)

    def report(self, update: str = "") -> str:
        """Returns what differs, cause by cause; ends with how to accept it."""
        lines, functions, leaves = self.causes()
        if not lines:
            count = "functions moved"
        else:
            count = "1 cause" if len(lines) == 1 else f"{len(lines)} causes"
        text = [f"{self.now.lock.step} is not as locked in {self.path}: {count}."]
        for cause in lines:
            text += text_of_cause(cause)
        for change in self.functions:
            if change.moved_from:
                moved_from = ":".join(change.moved_from)
                text.append(f"  {moved_from} moved to {':'.join(change.function)}")
        if functions:
            names = [name for _, name in functions[:_MOST_LISTED]]
            left = len(functions) - _MOST_LISTED
            more = f" and {left} more" if left > 0 else ""
            text.append(f"  and so: {', '.join(names)}{more}")
        if leaves:
            text.append("  and so:")
            text += _indented(_lock_columns(list(map(_row_of_leaves, leaves))), "    ")
        if update:
            text.append(f"If it should be so: {update}")
        return "\n".join(text)


def compared(now: TracedStep, path: str) -> Locked:
    """Compares a step with the lock in a file.

    Raises:
        LockError: if the file cannot be used, or is the lock of another step.
    """
    lock = read_lock(path)
    functions, leaves = differences(lock, now)
    is_other = leaves or any(change.added or change.removed for change in functions)
    if lock.step != now.lock.step and is_other:  # not only another name
        raise LockError(
            f"{path} is the lock of {lock.step}, and this is {now.lock.step}. Name its own "
            f"file, or remove {path} if {lock.step} is gone."
        )
    return Locked(now, path, functions, leaves)


class _ChangedRow(NamedTuple):
    """What changed, as it is locked and as it is now; "" where there is none."""

    what: str
    locked: str
    now: str


def text_of_cause(cause: LockCause) -> list[str]:
    """Returns a cause in lines of text: where it is, its source, and what changed there."""
    places = ", ".join(map(str, cause.lines))
    if cause.change and places:
        head = f"{places}: {cause.change.function[1]}"
    elif cause.change:
        head = f" {cause.change.function[1]}"
    else:
        head = f"{places}:" if places else ""
    text = [f"  {head}"] if head else []
    text += _indented([line.code for line in cause.lines if line.code], "      ")
    return text + _indented(_lock_columns(_rows_of_cause(cause)), "    ")


def data_of_cause(cause: LockCause) -> dict[str, Any]:
    """Returns a cause for JSON."""
    return {
        "lines": [{"file": x.file, "line": x.line, "code": x.code} for x in cause.lines],
        "function": ":".join(cause.change.function) if cause.change else "",
        "changes": [row._asdict() for row in _rows_of_cause(cause)],
    }


def _rows_of_cause(cause: LockCause) -> list[_ChangedRow]:
    """Returns what a function computes otherwise, by kind, and leaves of other types."""
    rows = []
    if cause.change:
        added = _texts_by_kind(cause.change.added)
        removed = _texts_by_kind(cause.change.removed)
        kinds = list(added | removed)
        # What changes in a backward pass follows from the forward one, if that changes.
        forward = [kind for kind in kinds if not kind.startswith("backward")]
        for kind in forward or kinds:
            rows.append(_ChangedRow(kind, removed.get(kind, ""), added.get(kind, "")))
    return rows + [_row_of_leaves(change) for change in cause.leaves]


def _texts_by_kind(entries: Sequence[Any]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    for entry in entries:
        texts.setdefault(entry.kind, []).append(entry.text)
    return {kind: "; ".join(alike) for kind, alike in texts.items()}


def _row_of_leaves(change: TypesChange) -> _ChangedRow:
    return _ChangedRow(change.what, change.before, change.after)


def _lock_columns(rows: Sequence[_ChangedRow]) -> list[str]:
    shown = []
    for row in rows[:_MOST_LISTED]:
        before = row.locked or "none such"
        after = row.now or "no longer"
        shown.append((row.what, f"locked: {before}   now: {after}"))
    text = columns(shown)
    if len(rows) > _MOST_LISTED:
        text.append(f"and {len(rows) - _MOST_LISTED} more of these")
    return text


def _indented(lines: Sequence[str], margin: str) -> list[str]:
    return [margin + line for line in lines]
