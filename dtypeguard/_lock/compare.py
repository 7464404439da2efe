"""What differs between a lock and what a step computes in now."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .computations import MIRRORED, Function, LockEntry
from .leaves import TypedLeaf, covering, fold, grouped
from .step import Lock, TracedStep

INPUTS, CARRY, OUTPUTS = "inputs", "carry", "outputs"
_Pair = tuple[list[LockEntry], list[LockEntry]]


class FunctionChange(NamedTuple):
    """A function that computes otherwise.

    Attributes:
        function: its file and name.
        added: what it computes now and did not, or in more calls.
        removed: what it no longer does, or in fewer calls.
        before: all that it computed.
        moved_from: what it was, if it is only called otherwise, or in another file.
    """

    function: Function
    added: Sequence[LockEntry]
    removed: Sequence[LockEntry]
    before: Sequence[LockEntry]
    moved_from: Function | None = None


class LeafChange(NamedTuple):
    """Leaves of a table that changed their type; "" where there is no such leaf."""

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
    missing = dict(locked.functions)
    new = [x for x in now.lock.functions.items() if x[0] not in missing]
    changes: list[FunctionChange] = []
    for function, entries in now.lock.functions.items():
        if (was := missing.pop(function, None)) is not None and any(
            pair := _compared(was, entries)
        ):
            changes.append(FunctionChange(function, *pair, was))
    for function, entries in new:
        same = [x for x, was in missing.items() if not any(_compared(was, entries))]
        same.sort(key=lambda x: x[1] != function[1])  # the same name in another file first
        same += [x for x in missing if x[1] == function[1]]
        was = missing.pop(same[0]) if same else []
        pair = _compared(was, entries) if same else ([*dict.fromkeys(entries)], [])
        changes.append(FunctionChange(function, *pair, was, *same[:1]))
    for function, was in missing.items():
        changes.append(FunctionChange(function, (), [*dict.fromkeys(was)], was))
    tables = INPUTS, CARRY, OUTPUTS
    leaves = [
        LeafChange(table, *change)
        for table in tables
        for change in _leaves(getattr(locked, table), now.leaves[table])
    ]
    return Differences(changes, leaves)


def _compared(before: Iterable[LockEntry], after: Iterable[LockEntry]) -> _Pair:
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


def _leaves(
    types: dict[str, str], leaves: Iterable[TypedLeaf]
) -> Iterator[tuple[str, str, str, list[TypedLeaf]]]:
    """The leaves of a table that changed their type, by what is told of them."""
    groups: dict[str, dict[TypedLeaf, str]] = {path: {} for path in types}
    new: list[TypedLeaf] = []
    for leaf in leaves:
        path, rest = covering(types, leaf.path)
        if path:
            groups[path][leaf] = rest
        else:
            new.append(leaf)
    for path, group in groups.items():
        known = types[path].split(", ")
        if not group:
            yield path, types[path], "", []
        elif {leaf.name for leaf in group} != {*known}:
            others = [leaf for leaf in group if leaf.name not in known] or [*group]
            # The path in the lock stands for all below it.
            is_whole = len(others) == len(group)
            below: dict[str, list[TypedLeaf]] = {}
            for leaf in others:
                below.setdefault("" if is_whole else fold(group[leaf]), []).append(leaf)
            for rest, same in below.items():
                yield (
                    path + rest,
                    types[path],
                    ", ".join(sorted({x.name for x in same})),
                    same,
                )
    for path, name in grouped(new).items():
        yield path, "", name, [x for x in new if covering([path], x.path)[0]]
