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
        table: their table, `inputs`.
        path: their path, `params['w']`.
        before: their types in the lock; "" if they are new.
        after: their types; "" if they are gone.
        leaves: the leaves.
    """

    table: str
    path: str
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
    functions = step.lock.functions
    missing = {x: lock.functions[x] for x in lock.functions if x not in functions}
    changes: list[FunctionChange] = []
    for function, entries in functions.items():
        moved_from = None
        if function not in lock.functions:
            moved_from = _moved_from(function, entries, missing)
        before = lock.functions.get(moved_from or function, [])
        # A function has moved to one place only.
        if moved_from:
            missing.pop(moved_from)
        added, removed = _difference_of_entries(before, entries)
        if added or removed or moved_from:
            changes.append(FunctionChange(function, added, removed, before, moved_from))
    for function, before in missing.items():
        _, removed = _difference_of_entries(before, [])
        changes.append(FunctionChange(function, [], removed, before))
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
    # The name counts first: a function that moves to another file often changes as well.
    candidates = [x for x in missing if x[1] == function[1]]
    for candidate, before in missing.items():
        if _difference_of_entries(before, entries) == ([], []):
            candidates.append(candidate)
    return candidates[0] if candidates else None


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
        locked_names = set(types[path].split(", "))
        if {leaf.name for leaf in group} == locked_names:
            continue
        changed = [leaf for leaf in group if leaf.name not in locked_names]
        if len(changed) in (0, len(group)):
            # A type of the lock is gone from below the path: all leaves stand for it.
            changes.append(_change_of_leaves(table, path, types[path], list(group)))
            continue
        below: dict[str, list[TypedLeaf]] = {}
        for leaf in changed:
            below.setdefault(path + fold(group[leaf]), []).append(leaf)
        for what, of_path in below.items():
            changes.append(_change_of_leaves(table, what, types[path], of_path))
    for path, name in types_by_node(new).items():
        changes.append(TypesChange(table, path, "", name))
    return changes


def _change_of_leaves(
    table: str, path: str, before: str, leaves: Sequence[TypedLeaf]
) -> TypesChange:
    names = sorted({leaf.name for leaf in leaves})
    return TypesChange(table, path, before, ", ".join(names), leaves)
