"""A step beside the lock in a file: what changed, cause by cause, as text and JSON."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._leaves.table import and_more, columns
from .causes import LockCause, LockCauses, find_causes
from .compare import FunctionChange, TypesChange, differences
from .computations import ENTRY_KINDS, MIRRORED
from .lock_file import LockError, read_lock
from .step import TracedStep

# Kinds of entries, or leaves, of a cause.
_MOST_LISTED = 8


class Locked(NamedTuple):
    """A step beside the lock in a file.

    Attributes:
        step: the step as it is.
        path: the file.
        functions: those that compute otherwise.
        leaves: those of other types.
    """

    step: TracedStep
    path: str
    functions: list[FunctionChange]
    leaves: list[TypesChange]

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return not (self.functions or self.leaves)

    def causes(self) -> LockCauses:
        """Returns what changed, line by line."""
        return find_causes(self.functions, self.leaves, self.step)

    def report(self, update: str = "") -> str:
        """Returns what differs, cause by cause; ends with how to accept it."""
        causes, functions, leaves = self.causes()
        count = "1 cause" if len(causes) == 1 else f"{len(causes)} causes"
        # What only moved has no cause, and is a difference all the same: the file is stale.
        if not causes:
            count = "functions moved"
        text = [f"{self.step.lock.step} is not as locked in {self.path}: {count}."]
        for cause in causes:
            text += text_of_cause(cause)
        for change in self.functions:
            if change.moved_from:
                before = ":".join(change.moved_from)
                text.append(f"  {before} moved to {':'.join(change.function)}")
        if functions:
            names = ", ".join(name for _, name in functions)
            text.append(f"  and so: {names}")
        if leaves:
            text.append("  and so:")
            text += _table_of_rows(_rows_of_leaves(leaves))
        if update:
            text.append(f"If it should be so: {update}")
        return "\n".join(text)


def compared(step: TracedStep, path: str) -> Locked:
    """Compares a step with the lock in a file.

    Raises:
        LockError: if the file cannot be used, or is the lock of another step.
    """
    lock = read_lock(path)
    functions, leaves = differences(lock, step)
    # A step that computes the same may have another name.
    differs = leaves or any(change.added or change.removed for change in functions)
    # Of another step every line would differ: the file is the mistake, not the step.
    if lock.step != step.lock.step and differs:
        raise LockError(
            f"{path} is the lock of {lock.step}, and this is {step.lock.step}. Name its "
            f"own file, or remove {path} if {lock.step} is gone."
        )
    return Locked(step, path, functions, leaves)


class _ChangedRow(NamedTuple):
    """A row of a cause, or a change in JSON.

    Attributes:
        what: a kind of entry, or a leaf.
        locked: in the lock; "" if there was none.
        now: in the step as it is; "" if there is none.
    """

    what: str
    locked: str
    now: str  # a key of the JSON


def text_of_cause(cause: LockCause) -> list[str]:
    """Returns a cause in lines of text: where it is, its source, and what changed there."""
    places = ", ".join(map(str, cause.lines))
    head = f"{places}:" if places else ""
    if cause.change is not None:
        head = f"{head} {cause.change.function[1]}"
    text = [f"  {head}"] if head else []
    # Without its file a line has no source to show.
    text += [f"      {line.code}" for line in cause.lines if line.code]
    return text + _table_of_rows(_rows_of_cause(cause))


def data_of_cause(cause: LockCause) -> dict[str, Any]:
    """Returns a cause for JSON."""
    # An input belongs to no function.
    function = ""
    if cause.change is not None:
        function = ":".join(cause.change.function)
    lines = [{"file": x.file, "line": x.line, "code": x.code} for x in cause.lines]
    changes = [row._asdict() for row in _rows_of_cause(cause)]
    return {"lines": lines, "function": function, "changes": changes}


def _rows_of_cause(cause: LockCause) -> list[_ChangedRow]:
    """Returns a row for each kind of changed entries, and for each changed leaf."""
    rows = _rows_of_leaves(cause.leaves)
    if cause.change is None:
        return rows
    backward_rows: list[_ChangedRow] = []
    for kind in ENTRY_KINDS:
        removed = [entry.text for entry in cause.change.removed if entry.kind == kind]
        added = [entry.text for entry in cause.change.added if entry.kind == kind]
        row = _ChangedRow(kind, "; ".join(removed), "; ".join(added))
        if not (added or removed):
            continue
        if kind.startswith(MIRRORED):
            backward_rows.append(row)
        else:
            rows.append(row)
    # What changes in a backward pass follows from the forward one, if that changes.
    return rows or backward_rows


def _rows_of_leaves(changes: Sequence[TypesChange]) -> list[_ChangedRow]:
    rows: list[_ChangedRow] = []
    for change in changes:
        what = f"{change.table} {change.path}"
        rows.append(_ChangedRow(what, change.before, change.after))
    return rows


def _table_of_rows(rows: Sequence[_ChangedRow]) -> list[str]:
    pairs: list[tuple[str, str]] = []
    for row in rows[:_MOST_LISTED]:
        before = row.locked or "none such"
        after = row.now or "no longer"
        pairs.append((row.what, f"locked: {before}   now: {after}"))
    lines = columns(pairs)
    lines += and_more(len(rows) - len(pairs), "change")
    return [f"    {line}" for line in lines]
