"""A step beside the lock in a file: what changed, cause by cause, as text and JSON."""

import collections
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .._leaves.table import columns
from .._source.origin import Origin
from .causes import blamed_lines
from .compare import (
    ChangedRow,
    FunctionChanges,
    LeavesOfRow,
    function_changes,
    leaf_changes,
)
from .computations import LockedFunction
from .lock_file import LockError, read_lock
from .step import INPUTS, OUTPUTS, TracedStep


class LockCause(NamedTuple):
    """A line that changed, or an input.

    Attributes:
        lines: several that the lock does not tell apart.
        function: the function that changed; None of an input.
        changes: what changed.
    """

    lines: Sequence[Origin]
    function: LockedFunction | None
    changes: Sequence[ChangedRow]  # a key of the JSON


# What only moved has no cause, and is a difference all the same: the file is stale.
_COUNTS = {0: "functions moved", 1: "1 cause"}


class Locked(NamedTuple):
    """A step beside the lock in a file.

    Attributes:
        step: the step as it is.
        path: the file.
        functions: how they compute otherwise, if they do.
        inputs: those of other types.
        outputs: those of other types.
    """

    step: TracedStep
    path: str
    functions: FunctionChanges
    inputs: LeavesOfRow
    outputs: LeavesOfRow

    @property
    def leaf_rows(self) -> list[ChangedRow]:
        """The rows of inputs and outputs."""
        return [*self.inputs, *self.outputs]

    @property
    def rows(self) -> list[ChangedRow]:
        """All rows."""
        rows = self.leaf_rows
        for change in self.functions.values():
            rows += change.rows
        return rows

    @property
    def moved(self) -> list[str]:
        """The functions with another name or file, as they are reported."""
        moved = []
        for function, change in self.functions.items():
            if function != change.locked_function:
                before = ":".join(change.locked_function)
                after = ":".join(function)
                moved.append(f"  {before} moved to {after}")
        return moved

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return not (self.rows or self.moved)

    def causes(self) -> list[LockCause]:
        """Returns the lines behind what changed, but for functions that only moved."""
        rows_of_line = collections.defaultdict(list)
        odd_values = set()
        for row, values in self.inputs.items():
            # A new input had no type that could change.
            if not row.locked:
                continue
            odd_values |= values
            # An input has no line of its own: it stands at the first that takes it.
            for call in self.step.calls:
                if values & call.takes.keys():
                    rows_of_line[call.line].append(row)
                    break
        lines_of_function = blamed_lines(self.functions, odd_values, self.step)
        causes = []
        for function, lines in lines_of_function.items():
            rows = self.functions[function].rows
            cause = LockCause(list(lines), function, rows)
            causes.append(cause)
        for line, rows in rows_of_line.items():
            cause = LockCause([line], None, rows)
            causes.append(cause)
        if not causes:
            # They only compute less, and what is gone has no line.
            for function, change in self.functions.items():
                if change.rows:
                    causes.append(LockCause([], function, change.rows))
        rows = self.leaf_rows
        # All functions compute as locked, so the step returns another of their values.
        if rows and not causes:
            step = self.step.lock.step
            file, _, name = step.rpartition(":")
            causes = [LockCause([], (file, name), rows)]
        return causes

    def report(self, update: str = "") -> str:
        """Returns what differs, cause by cause; ends with how to accept it."""
        causes = self.causes()
        name = self.step.lock.step
        number = len(causes)
        count = _COUNTS.get(number, f"{number} causes")
        head = f"{name} is not as locked in {self.path}: {count}."
        text = [head]
        explained = set()
        for cause in causes:
            text += _text_of_cause(cause)
            explained.add(cause.function)
            explained.update(cause.changes)
        text += self.moved
        changed = [name for name, change in self.functions.items() if change.rows]
        followers = [name for file, name in changed if (file, name) not in explained]
        if followers:
            names = ", ".join(followers)
            text.append(f"  and so: {names}")
        leaf_rows = self.leaf_rows
        following_rows = [row for row in leaf_rows if row not in explained]
        if following_rows:
            text.append("  and so:")
            text += _table_of_rows(following_rows)
        if update:
            text.append(f"If it should be so: {update}")
        return "\n".join(text)


def compared(step: TracedStep, path: str) -> Locked:
    """Compares a step with the lock in a file.

    Raises:
        LockError: if the file cannot be used, or is the lock of another step.
    """
    lock = read_lock(path)
    locked = Locked(
        step,
        path,
        functions=function_changes(lock.functions, step.lock.functions),
        inputs=leaf_changes(lock, step, INPUTS),
        outputs=leaf_changes(lock, step, OUTPUTS),
    )
    name = step.lock.step
    # A step that computes the same may have another name. Of another step every line would
    # differ: the file is the mistake, not the step.
    if lock.step != name and locked.rows:
        raise LockError(
            f"{path} is the lock of {lock.step}, and this is {name}. Name its own file, or "
            f"remove {path} if {lock.step} is gone."
        )
    return locked


def _text_of_cause(cause: LockCause) -> list[str]:
    """Returns a cause in lines of text: where it is, its source, and what changed there."""
    file, name = cause.function or ("", "")
    # What is gone from a function has no line.
    place = ", ".join(map(str, cause.lines)) or file
    # A step without code has its name alone.
    head = f"{place}: {name}"
    head = head.removeprefix(": ")
    text = [f"  {head}".rstrip()]
    for line in cause.lines:
        text.append(f"      {line.code}")
    return text + _table_of_rows(cause.changes)


def _table_of_rows(rows: Iterable[ChangedRow]) -> list[str]:
    pairs = []
    for row in rows:
        before = row.locked or "none such"
        after = row.now or "no longer"
        types = f"locked: {before}   now: {after}"
        pairs.append((row.what, types))
    lines = columns(pairs)
    return [f"    {line}" for line in lines]
