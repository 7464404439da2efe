"""What differs between a lock and what a step computes in now."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from .computations import MIRRORED, LockEntry
from .leaves import Folding, TypedLeaf, covering, grouped
from .step import Entries, Function, Lock, TracedStep

INPUTS, CARRY, OUTPUTS = "inputs", "carry", "outputs"


class FunctionChange(NamedTuple):
    """A function that computes otherwise.

    Attributes:
        function: its file and name.
        added: what it computes now and did not, or in more calls.
        removed: what it no longer does, or in fewer calls.
        before: all that it computed, in order.
        moved_from: what it was, if it is only called otherwise, or in another file.
    """

    function: Function
    added: Sequence[LockEntry]
    removed: Sequence[LockEntry]
    before: Entries
    moved_from: Function | None = None


class LeafChange(NamedTuple):
    """Leaves that changed their type.

    Attributes:
        table: "inputs", "carry" or "outputs".
        path: of one leaf, or in the lock of several.
        before: the type in the lock; "" if it has none.
        after: the type now; "" if there is no such leaf.
        leaves: the leaves now.
    """

    table: str
    path: str
    before: str
    after: str
    leaves: Sequence[TypedLeaf] = ()


class Differences(NamedTuple):
    """What differs; nothing if the lock holds."""

    functions: list[FunctionChange]
    leaves: list[LeafChange]

    @property
    def of_other_tree(self) -> list[LeafChange]:
        """The inputs that only one of the two has."""
        is_new = lambda x: not (x.before and x.after) and not x.after.startswith("->")
        return [x for x in self.leaves if x.table != OUTPUTS and is_new(x)]


def differences(locked: Lock, now: TracedStep) -> Differences:
    """Compares a lock with a step as it is now.

    A call more or less that computes as others of the function do is no difference. One
    that goes from one line of the lock to another is.
    """
    old, new = locked.functions, now.lock.functions
    missing = {function: old[function] for function in old if function not in new}
    changes: list[FunctionChange] = []
    for function, entries in new.items():
        if function in old:
            added, removed = _compared(old[function], entries)
            if added or removed:
                changes.append(FunctionChange(function, added, removed, old[function]))
            continue
        same = [x for x, was in missing.items() if not any(_compared(was, entries))]
        same.sort(key=lambda x: x[1] != function[1])  # the same name in another file first
        same += [x for x in missing if x[1] == function[1]]
        if same:
            was = missing.pop(same[0])
            changes.append(FunctionChange(function, *_compared(was, entries), was, same[0]))
        else:
            changes.append(FunctionChange(function, list(dict.fromkeys(entries)), (), []))
    for function, was in missing.items():
        changes.append(FunctionChange(function, (), list(dict.fromkeys(was)), was))
    leaves = [x for table in (INPUTS, CARRY, OUTPUTS) for x in _leaves(table, locked, now)]
    return Differences(changes, leaves)


def is_of_another(locked: Lock, now: TracedStep, found: Differences) -> bool:
    """Whether a lock is of another step, not of this one under another name."""
    if locked.step == now.lock.step:
        return False
    return any(x.added or x.removed for x in found.functions) or bool(found.leaves)


def _compared(before: Entries, after: Entries) -> tuple[list[LockEntry], list[LockEntry]]:
    """What is computed more often, and what less, as far as that is a difference."""
    old, new = Counter(before), Counter(after)
    forward = {entry.text for entry in (*old, *new) if entry.kind != MIRRORED}
    # A backward pass in a type of the forward one is nothing new.
    is_new = lambda x: x.kind != MIRRORED or x.text not in forward
    added: list[LockEntry] = []
    removed: list[LockEntry] = []
    for kind in dict.fromkeys(entry.kind for entry in (*new, *old)):
        more = [x for x, n in new.items() if x.kind == kind and n > old[x]]
        less = [x for x, n in old.items() if x.kind == kind and n > new[x]]
        is_other = any(x not in old and is_new(x) for x in more)
        is_other |= any(x not in new and is_new(x) for x in less)
        if is_other or (more and less):
            added += more if less else [x for x in more if x not in old]
            removed += less if more else [x for x in less if x not in new]
    return added, removed


def _leaves(table: str, locked: Lock, now: TracedStep) -> list[LeafChange]:
    types, leaves = getattr(locked, table), now.leaves[table]
    folding = Folding(leaf[:2] for leaf in leaves)
    groups: dict[tuple[str, ...], list[TypedLeaf]] = {}
    for leaf in leaves:
        groups.setdefault(folding.parts(leaf.path), []).append(leaf)
    found: dict[tuple[str, str, str], list[TypedLeaf]] = {}
    covers = {p: covering(types, p, group[0].path) for p, group in groups.items()}
    names = {p: ", ".join(sorted({x.name for x in group})) for p, group in groups.items()}
    used = Counter(covers.values())
    others = Counter(path for p, path in covers.items() if path and types[path] != names[p])
    new = [
        leaf for parts, group in groups.items() if covers[parts] is None for leaf in group
    ]
    new_types = grouped(leaf[:2] for leaf in new)
    for parts, group in groups.items():
        path, name = covers[parts], names[parts]
        if path is None:
            shown = covering(new_types, parts, group[0].path) or "".join(parts)
            found.setdefault((shown, "", new_types.get(shown, name)), []).extend(group)
        elif types[path] != name:
            # The path in the lock stands for all below it.
            shown = path if others[path] == used[path] else "".join(parts)
            found.setdefault((shown, types[path], name), []).extend(group)
    changes = [LeafChange(table, *key, group) for key, group in found.items()]
    gone = [path for path in types if not used[path]]
    return changes + [LeafChange(table, path, types[path], "") for path in gone]
