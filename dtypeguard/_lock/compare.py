"""What differs between a lock and a step as it is."""

import collections
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from .computations import (
    BACKWARD_KINDS,
    CAST,
    ENTRY_KINDS,
    MIRRORED,
    LockedFunction,
    LockEntries,
)
from .step import Lock, TracedStep


class ChangedRow(NamedTuple):
    """A kind of entries, or leaves, with other types than in the lock.

    Attributes:
        what: the kind, or the table and the path: `inputs params['w']`.
        locked: in the lock; "" if there was none.
        now: in the step as it is; "" if there is none.
    """

    what: str
    locked: str
    now: str  # a key of the JSON


class FunctionChange(NamedTuple):
    """How a function computes otherwise, if it does.

    Attributes:
        locked_function: the function in the lock, maybe with another name or file.
        rows: a row for each kind of entries that changed.
        lost_cast: whether it has a cast less.
        unseen: the entries of a kind that are new.
        replacing: those that are new, or of more calls, and by themselves: casts, and
            entries that take what one that is gone took.
    """

    locked_function: LockedFunction
    rows: list[ChangedRow]
    lost_cast: bool
    unseen: dict[str, set[str]]
    replacing: dict[str, set[str]]


# By function, as the step has it.
FunctionChanges = dict[LockedFunction, FunctionChange]
# The leaves that changed their type, by their numbers in the graph.
LeavesOfRow = dict[ChangedRow, set[int]]
_Functions = Mapping[LockedFunction, LockEntries]


def function_changes(locked: _Functions, functions: _Functions) -> FunctionChanges:
    """Compares the functions of a lock with those of a step as it is.

    A call more or less that computes as others of the function do is no difference. One
    that goes from one line of the lock to another is.
    """
    missing = dict(locked)
    for function in functions:
        missing.pop(function, None)
    nothing = LockEntries(Counter)
    changes = {}
    for function, entries in functions.items():
        locked_function = function
        if function not in locked:
            locked_function = _function_before(function, entries, missing)
        # A function has moved to one place only.
        missing.pop(locked_function, None)
        before = locked.get(locked_function, nothing)
        changes[function] = _function_change(locked_function, before, entries)
    for function, before in missing.items():
        changes[function] = _function_change(function, before, nothing)
    return changes


def _function_before(
    function: LockedFunction, entries: LockEntries, missing: _Functions
) -> LockedFunction:
    """Returns the missing function with the same name, or with the same entries."""
    # The name counts first: a function that moves to another file often changes as well.
    candidates = [name for name in missing if name[1] == function[1]]
    candidates += [
        name
        for name, before in missing.items()
        if not _function_change(name, before, entries).rows
    ]
    return [*candidates, function][0]


def _function_change(
    locked_function: LockedFunction, before: LockEntries, after: LockEntries
) -> FunctionChange:
    """Returns the entries of more calls, and those of fewer, where they matter."""
    change = FunctionChange(
        locked_function,
        rows=[],
        lost_cast=bool(before[CAST] - after[CAST]),
        unseen=collections.defaultdict(set),
        replacing=collections.defaultdict(set),
    )
    # All kinds but the last are of the forward pass, or products and sums.
    texts = set()
    for kind in ENTRY_KINDS:
        calls_before = before[kind]
        calls = after[kind]
        unseen = calls.keys() - calls_before
        # A difference of counters has no counts below 0: the entries of more calls alone.
        added = set(calls - calls_before)
        removed = set(calls_before - calls)
        if not (added and removed):  # a call more or less, maybe as others of the function
            added = unseen
            removed = calls_before.keys() - calls
            # A backward pass in a type of the forward one is nothing new.
            if kind == MIRRORED and added | removed <= texts:
                break
        texts.update(calls_before, calls)
        change.unseen[kind] = unseen
        replaced = set(map(_operands, removed))
        change.replacing[kind] = {
            text for text in added if kind == CAST or _operands(text) in replaced
        }
        # What changes in a backward pass follows from the forward one, if that changes.
        if change.rows and kind in BACKWARD_KINDS:
            continue
        if added | removed:
            locked_text = "; ".join(sorted(removed))
            text_now = "; ".join(sorted(added))
            row = ChangedRow(kind, locked_text, text_now)
            change.rows.append(row)
    return change


def _operands(text: str) -> str:
    """Returns the types of the operands of an entry: a file has its text alone."""
    operands, _, _ = text.partition(" -> ")
    return operands


def leaf_changes(lock: Lock, step: TracedStep, table: str) -> LeavesOfRow:
    """Compares the leaves of a table of a lock with those of a step as it is."""
    locked = lock.types[table]
    types = step.lock.types[table]
    lost = dict(locked)
    leaves_of_row = collections.defaultdict(set)
    for leaf in step.leaves[table]:
        nodes = set(leaf.nodes)
        # New leaves are below no path of the lock.
        locked_path = max(locked.keys() & nodes, key=len, default="")
        before = locked.get(locked_path, "")
        lost.pop(locked_path, None)
        path = max(types.keys() & nodes, key=len)
        after = types[path]
        if before != after:
            # One of them may stand for leaves that are as they were.
            longer_path = max(path, locked_path, key=len)
            name = f"{table} {longer_path}"
            row = ChangedRow(name, before, after)
            leaves_of_row[row].add(leaf.value)
    for path, before in lost.items():
        name = f"{table} {path}"
        row = ChangedRow(name, before, "")
        leaves_of_row[row] = set()
    return leaves_of_row
