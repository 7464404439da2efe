"""A step beside the lock in a file: what changed, cause by cause, as text and JSON."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._leaves.table import columns
from .causes import LockCause, LockCauses, find_causes
from .compare import FunctionChange, TypesChange, differences
from .computations import LockEntry
from .lock_file import LockError, read_lock
from .step import TracedStep

# Functions that follow, or leaves of a line.
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
        count = f"{len(causes)} causes"
        if len(causes) == 1:
            count = "1 cause"
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
            text.append(f"  and so: {_names_of(functions)}")
        if leaves:
            rows = [_row_of_leaves(change) for change in leaves]
            text.append("  and so:")
            text += _with_margin(_lock_columns(rows), "    ")
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
    codes = [line.code for line in cause.lines if line.code]
    text += _with_margin(codes, "      ")
    rows = _rows_of_cause(cause)
    return text + _with_margin(_lock_columns(rows), "    ")


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
    rows: list[_ChangedRow] = []
    if cause.change is not None:
        added = _texts_by_kind(cause.change.added)
        removed = _texts_by_kind(cause.change.removed)
        kinds = list(added | removed)
        # What changes in a backward pass follows from the forward one, if that changes.
        forward_kinds = [kind for kind in kinds if not kind.startswith("backward")]
        for kind in forward_kinds or kinds:
            rows.append(_ChangedRow(kind, removed.get(kind, ""), added.get(kind, "")))
    return rows + [_row_of_leaves(change) for change in cause.leaves]


def _texts_by_kind(entries: Sequence[LockEntry]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    for entry in entries:
        texts.setdefault(entry.kind, []).append(entry.text)
    return {kind: "; ".join(of_kind) for kind, of_kind in texts.items()}


def _row_of_leaves(change: TypesChange) -> _ChangedRow:
    return _ChangedRow(change.what, change.before, change.after)


def _lock_columns(rows: Sequence[_ChangedRow]) -> list[str]:
    pairs: list[tuple[str, str]] = []
    for row in rows[:_MOST_LISTED]:
        before = row.locked or "none such"
        after = row.now or "no longer"
        pairs.append((row.what, f"locked: {before}   now: {after}"))
    text = columns(pairs)
    if len(rows) > _MOST_LISTED:
        text.append(f"and {len(rows) - _MOST_LISTED} more of these")
    return text


def _names_of(functions: Sequence[tuple[str, str]]) -> str:
    names = ", ".join(name for _, name in functions[:_MOST_LISTED])
    if len(functions) > _MOST_LISTED:
        return f"{names} and {len(functions) - _MOST_LISTED} more"
    return names


def _with_margin(lines: Sequence[str], margin: str) -> list[str]:
    return [margin + line for line in lines]
