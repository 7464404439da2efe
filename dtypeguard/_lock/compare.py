"""What differs between a lock and a step, and the lines of source behind it.

The lines are looked for after a check has failed. A change of type goes on to all that uses
a value. The cause is a call that computes otherwise and takes nothing of one that does. A
call that takes what its function took, and computes what none of it did, is one wherever
it stands.
"""

import ast
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from types import CodeType
from typing import NamedTuple

from .._source.origin import Origin
from .._source.syntax import Expression, expression, renamed_before
from .computations import (
    CAST,
    ENTRY_KINDS,
    MIRRORED,
    Computation,
    LockedFunction,
    LockEntry,
    line_in,
)
from .step import INPUTS, TABLES, Lock, TracedStep, TypedLeaf, covering, fold, types_by_node


class FunctionChange(NamedTuple):
    """A function that computes otherwise: what is new or in more calls, and the reverse."""

    function: LockedFunction
    added: Sequence[LockEntry]
    removed: Sequence[LockEntry]
    before: Sequence[LockEntry]  # all that it computed
    moved_from: LockedFunction | None = (
        None  # what it was, under another name or in another file
    )


class TypesChange(NamedTuple):
    """Leaves that changed their type; "" where there is no such leaf."""

    what: str  # `inputs params['w']`
    before: str
    after: str
    leaves: Sequence[TypedLeaf] = ()


def differences(
    locked: Lock, now: TracedStep
) -> tuple[list[FunctionChange], list[TypesChange]]:
    """Compares a lock with a step as it is now: nothing differs if the lock holds.

    A call more or less that computes as others of the function do is no difference. One
    that goes from one line of the lock to another is.
    """
    gone = dict(locked.functions)
    for function in now.lock.functions:
        gone.pop(function, None)
    changes: list[FunctionChange] = []
    for function, entries in now.lock.functions.items():
        moved_from = None
        before = locked.functions.get(function)
        if before is None:
            moved_from = _moved_from(function, entries, gone)
            before = gone.pop(moved_from) if moved_from else []
        added, removed = _difference_of_entries(before, entries)
        if added or removed or moved_from:
            changes.append(FunctionChange(function, added, removed, before, moved_from))
    for function, before in gone.items():
        added, removed = _difference_of_entries(before, ())
        changes.append(FunctionChange(function, added, removed, before))
    leaves = [
        change
        for table in TABLES
        for change in _changes_of_table(table, getattr(locked, table), now.leaves[table])
    ]
    return changes, leaves


def _moved_from(
    function: LockedFunction,
    entries: Sequence[LockEntry],
    gone: dict[LockedFunction, list[LockEntry]],
) -> LockedFunction | None:
    """Returns the function that is gone and has the same name, or computes the same."""
    for candidate in gone:
        if candidate[1] == function[1]:
            return candidate
    for candidate, before in gone.items():
        if _difference_of_entries(before, entries) == ([], []):
            return candidate
    return None


def _difference_of_entries(
    before: Iterable[LockEntry], after: Iterable[LockEntry]
) -> tuple[list[LockEntry], list[LockEntry]]:
    """Returns what is computed more often, and what less, if that is a difference."""
    old = Counter(before)
    new = Counter(after)
    forward = {entry.text for entry in old + new if entry.kind != MIRRORED}
    added: list[LockEntry] = []
    removed: list[LockEntry] = []
    for kind in ENTRY_KINDS:
        more = [entry for entry in new - old if entry.kind == kind]
        less = [entry for entry in old - new if entry.kind == kind]
        if not (more and less):
            more = [entry for entry in more if entry not in old]
            less = [entry for entry in less if entry not in new]
        # A backward pass in a type of the forward one is nothing new.
        is_new = kind != MIRRORED or any(x.text not in forward for x in more + less)
        if (more and less) or is_new:
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
    changed = [leaf for leaf in group if leaf.name not in names] or list(group)
    if len(changed) == len(group):  # the path in the lock stands for all below it
        return {"": changed}
    below: dict[str, list[TypedLeaf]] = {}
    for leaf in changed:
        below.setdefault(fold(group[leaf]), []).append(leaf)
    return below


class LockCause(NamedTuple):
    """A line that changed, or an input."""

    lines: Sequence[Origin]  # several that the lock does not tell apart
    change: FunctionChange | None = None  # None of an input
    leaves: Sequence[TypesChange] = ()


# The causes of differences, and what changed only because of them.
LockCauses = tuple[list[LockCause], list[LockedFunction], list[TypesChange]]
_Changes = dict[LockedFunction, FunctionChange]
_Makers = dict[int, Computation]


def causes(
    functions: Iterable[FunctionChange], leaves: Iterable[TypesChange], now: TracedStep
) -> LockCauses:
    """Finds the lines behind differences, but for functions that only moved."""
    changes = {x.function: x for x in functions if x.added or x.removed}
    calls = now.computations
    makers = {value: call for call in calls for value in call.gives}
    # An input stands at the first line that takes it.
    inputs: dict[Origin, list[TypesChange]] = {}
    rest: list[TypesChange] = []
    for change in leaves:
        line = _first_line_of_call(change, calls)
        if line is None:
            rest.append(change)
        else:
            inputs.setdefault(line, []).append(change)
    changed = itertools.chain.from_iterable(inputs.values())
    changed_inputs = [leaf.value for change in changed for leaf in change.leaves]
    blamed = _blamed(changes, calls, makers, changed_inputs)
    if not blamed and not inputs:  # they only compute less: no call tells more
        for function in changes:
            lines = [call.line for call in calls if call.function == function]
            blamed[function] = lines[-1:]
    found = [LockCause(lines, changes[function]) for function, lines in blamed.items()]
    found += [LockCause([line], None, group) for line, group in inputs.items()]
    if rest and not found:
        values = [change.leaves[0].value for change in rest if change.leaves]
        lines = [makers[value].line for value in values if value in makers]
        return [LockCause(lines, None, rest)], [], []
    return found, [function for function in changes if function not in blamed], rest


def _first_line_of_call(change: TypesChange, calls: Iterable[Computation]) -> Origin | None:
    """Returns the first line that takes one of several inputs; None for outputs."""
    if not change.what.startswith(INPUTS) or not change.before:
        return None
    values = {leaf.value for leaf in change.leaves}
    for call in calls:
        if values & call.takes.keys():
            return call.line
    return None


class _Reached:
    """The calls to which values of some calls go, whatever they compute with them."""

    def __init__(self, calls: Iterable[Computation]):
        self.calls: set[Computation] = set()
        self._takers: dict[int, list[Computation]] = {}
        for call in calls:
            for value in call.takes:
                self._takers.setdefault(value, []).append(call)

    def add(self, values: Iterable[int]) -> None:
        """Adds all calls that values go to."""
        waiting = list(values)
        while waiting:
            for call in self._takers.get(waiting.pop(), ()):
                if call not in self.calls:
                    self.calls.add(call)
                    waiting += call.gives


def _blamed(
    changes: _Changes, calls: Sequence[Computation], makers: _Makers, inputs: Sequence[int]
) -> dict[LockedFunction, list[Origin]]:
    """Returns the lines that changed, by the function whose types they changed."""
    blamed: dict[LockedFunction, list[Origin]] = {}
    reached = _Reached(calls)
    reached.add(inputs)
    added = {
        call: set(changes[call.function].added).intersection(call.entries)
        for call in calls
        if call.function in changes
    }
    # No call of their function was like them before.
    new = {
        call
        for call, entries in added.items()
        if not entries.issubset(changes[call.function].before)
    }
    taken_by_new = {value for call in new for value in call.takes}
    sure = {call for call in added if not taken_by_new.isdisjoint(call.gives)} | new

    def importance(call: Computation) -> tuple[bool, bool, int]:
        return call.is_backward, call not in sure, min(call.gives, default=0)

    for call in sorted(added, key=importance):
        if call.is_backward and blamed:  # it follows from the forward pass
            break
        function = call.function
        line = call.line
        is_reached = call in reached.calls
        if _is_changed_call(added[call], changes[function]):
            is_cause = call in sure or not (is_reached or function in blamed)
        else:
            is_cause = call in new and not is_reached
            if is_cause:
                function, line = _without_cast(call, added[call], changes, makers)
        if is_cause:
            lines = blamed.setdefault(function, [])
            if line not in lines:
                lines.append(line)
            reached.calls.add(call)
            reached.add(call.gives)
    return blamed


def _is_changed_call(added: Iterable[LockEntry], change: FunctionChange) -> bool:
    """Returns whether a call takes what calls of its function took, and differs."""
    taken = {(entry.kind, entry.operands) for entry in change.removed}
    # A cast is new where nothing else of its function took such values.
    taken |= {(CAST, entry.operands) for entry in change.before if entry.kind != CAST}
    return any((entry.kind, entry.operands) in taken for entry in added)


def _without_cast(
    call: Computation, added: Iterable[LockEntry], changes: _Changes, makers: _Makers
) -> tuple[LockedFunction, Origin]:
    """Returns the line without the cast of an operand: `h = x`, a call, or its maker."""
    types = _new_operands(added, changes[call.function])
    made_of = [makers[value] for value in call.takes if value in makers]
    function_of = {maker.chain[0][0]: maker.function for maker in makers.values()}
    function_of[call.chain[0][0]] = call.function
    chains = [call.chain, *(maker.chain for maker in made_of)]
    for code, instruction in itertools.chain.from_iterable(chains):
        change = changes.get(function_of.get(code, call.function))
        node = expression(code, instruction)
        if change is None or node is None or not _casts_one_of(change, types):
            continue
        # What made an operand stands where the cast was.
        is_in_call = (code, instruction) in call.chain
        line = _line_of_renaming(code, node) if is_in_call else None
        if line or code.co_name != "<lambda>":  # which is given its operands
            return change.function, line_in(code, line or node.lineno)
    return call.function, call.line


def _new_operands(added: Iterable[LockEntry], change: FunctionChange) -> set[str]:
    """Returns the types that entries take, and no entry of their kind took before."""
    types = set[str]()
    for entry in added:
        before = [x.operands for x in change.removed if x.kind == entry.kind]
        known = before[0].intersection(*before) if before else frozenset[str]()
        types |= entry.operands - known
    return types


def _casts_one_of(change: FunctionChange, types: Collection[str]) -> bool:
    """Returns whether a cast of nothing but these types is gone from a function."""
    return any(x.kind == CAST and x.operands <= set(types) for x in change.removed)


def _line_of_renaming(code: CodeType, node: Expression) -> int | None:
    """Returns the line on which a name of an expression got another's value, if any."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            line = renamed_before(code.co_filename, part.id, node.lineno)
            if line:
                return line
    return None
