"""What differs between a lock and a step as it is."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .computations import ENTRY_KINDS, MIRRORED, LockedFunction, LockEntry
from .step import TABLES, Lock, TracedStep, TypedLeaf, covering, fold, types_by_node


class FunctionChange(NamedTuple):
    """A function that computes otherwise.

    Attributes:
        function: the function.
        added: the entries that are new, or of more calls.
        removed: the entries that are gone, or of fewer calls.
        before: all its entries in the lock.
        moved_from: its other name, or its other file.
    """

    function: LockedFunction
    added: Sequence[LockEntry]
    removed: Sequence[LockEntry]
    before: Sequence[LockEntry]
    moved_from: LockedFunction | None = None


class TypesChange(NamedTuple):
    """Leaves that changed their type.

    Attributes:
        what: their table and path, `inputs params['w']`.
        before: their types in the lock; "" if they are new.
        after: their types; "" if they are gone.
        leaves: the leaves.
    """

    what: str
    before: str
    after: str
    leaves: Sequence[TypedLeaf] = ()


def differences(
    lock: Lock, step: TracedStep
) -> tuple[list[FunctionChange], list[TypesChange]]:
    """Compares a lock with a step as it is: nothing differs if the lock holds.

    A call more or less that computes as others of the function do is no difference. One
    that goes from one line of the lock to another is.
    """
    missing = dict(lock.functions)
    for function in step.lock.functions:
        missing.pop(function, None)
    changes: list[FunctionChange] = []
    for function, entries in step.lock.functions.items():
        moved_from = None
        before = lock.functions.get(function)
        if before is None:
            moved_from = _moved_from(function, entries, missing)
            # A function has moved to one place only.
            before = missing.pop(moved_from) if moved_from else []
        added, removed = _difference_of_entries(before, entries)
        if added or removed or moved_from:
            changes.append(FunctionChange(function, added, removed, before, moved_from))
    for function, before in missing.items():
        added, removed = _difference_of_entries(before, ())
        changes.append(FunctionChange(function, added, removed, before))
    leaves: list[TypesChange] = []
    for table in TABLES:
        leaves += _changes_of_table(table, getattr(lock, table), step.leaves[table])
    return changes, leaves


def _moved_from(
    function: LockedFunction,
    entries: Sequence[LockEntry],
    missing: dict[LockedFunction, list[LockEntry]],
) -> LockedFunction | None:
    """Returns the missing function with the same name, or with the same entries."""
    _, name = function
    # The name counts first: a function that moves to another file often changes as well.
    for candidate in missing:
        _, candidate_name = candidate
        if candidate_name == name:
            return candidate
    for candidate, before in missing.items():
        if _difference_of_entries(before, entries) == ([], []):
            return candidate
    return None


def _difference_of_entries(
    before: Iterable[LockEntry], after: Iterable[LockEntry]
) -> tuple[list[LockEntry], list[LockEntry]]:
    """Returns the entries of more calls, and those of fewer, where they matter."""
    old = Counter(before)
    new = Counter(after)
    forward = {entry.text for entry in old + new if entry.kind != MIRRORED}
    added: list[LockEntry] = []
    removed: list[LockEntry] = []
    for kind in ENTRY_KINDS:
        # A difference of counters has no counts below 0: the entries of more calls alone.
        more = [entry for entry in new - old if entry.kind == kind]
        less = [entry for entry in old - new if entry.kind == kind]
        if not (more and less):  # a call more or less, maybe as others of the function
            more = [entry for entry in more if entry not in old]
            less = [entry for entry in less if entry not in new]
            # A backward pass in a type of the forward one is nothing new.
            if kind == MIRRORED and forward.issuperset(x.text for x in more + less):
                continue
        added += more
        removed += less
    return added, removed


def _changes_of_table(
    table: str, types: dict[str, str], leaves: Sequence[TypedLeaf]
) -> list[TypesChange]:
    """Returns the leaves of a table that changed their type, by path in the lock."""
    # With the rest of the path below that in the lock.
    groups: dict[str, dict[TypedLeaf, str]] = {path: {} for path in types}
    new: list[TypedLeaf] = []
    for leaf in leaves:
        path, rest = covering(types, leaf.path)
        if path:
            groups[path][leaf] = rest
        else:
            new.append(leaf)
    changes: list[TypesChange] = []
    for path, group in groups.items():
        for rest, changed in _changed_below(types[path], group).items():
            names = sorted({leaf.name for leaf in changed})
            what = f"{table} {path}{rest}"
            changes.append(TypesChange(what, types[path], ", ".join(names), changed))
    for path, name in types_by_node(new).items():
        below = [leaf for leaf in new if covering([path], leaf.path)[0]]
        changes.append(TypesChange(f"{table} {path}", "", name, below))
    return changes


def _changed_below(
    locked_types: str, group: dict[TypedLeaf, str]
) -> dict[str, list[TypedLeaf]]:
    """Returns the leaves below a path with other types, by the rest of their paths."""
    names = set(locked_types.split(", "))
    if {leaf.name for leaf in group} == names:
        return {}
    # If a type of the lock is gone from below the path, no leaf is new: all stand for it.
    changed = [leaf for leaf in group if leaf.name not in names] or list(group)
    if len(changed) == len(group):  # the path in the lock stands for all below it
        return {"": changed}
    below: dict[str, list[TypedLeaf]] = {}
    for leaf in changed:
        below.setdefault(fold(group[leaf]), []).append(leaf)
    return below
