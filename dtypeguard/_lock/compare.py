"""What differs between a lock and a step, and the lines of source behind it.

The lines are looked for after a check has failed. A change of type goes on to all that uses
a value. The cause is a call that computes otherwise and takes nothing of one that does. A
call that takes what its function took, and computes what none of it did, is one wherever
it stands.
"""

import ast
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .._source.origin import Origin
from .._source.syntax import expression, renamed_before
from .computations import CAST, KINDS, MIRRORED, Computation, Function, LockEntry, line_in
from .step import INPUTS, TABLES, Lock, TracedStep, TypedLeaf, covering, fold, grouped


class FunctionChange(NamedTuple):
    """A function that computes otherwise: what is new or in more calls, and the reverse."""

    function: Function
    added: Sequence[LockEntry]
    removed: Sequence[LockEntry]
    before: Sequence[LockEntry]  # all that it computed
    moved_from: Function | None = None  # what it was, under another name or in another file


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
        added, removed = _compared(before, entries)
        if added or removed or moved_from:
            changes.append(FunctionChange(function, added, removed, before, moved_from))
    for function, before in gone.items():
        added, removed = _compared(before, ())
        changes.append(FunctionChange(function, added, removed, before))
    leaves = [
        change
        for table in TABLES
        for change in _changes_of_table(table, getattr(locked, table), now.leaves[table])
    ]
    return changes, leaves


def _moved_from(
    function: Function, entries: Sequence[LockEntry], gone: dict[Function, list[LockEntry]]
) -> Function | None:
    """Returns the function that is gone and has the same name, or computes the same."""
    for candidate in gone:
        if candidate[1] == function[1]:
            return candidate
    for candidate, before in gone.items():
        if _compared(before, entries) == ([], []):
            return candidate
    return None


def _compared(
    before: Iterable[LockEntry], after: Iterable[LockEntry]
) -> tuple[list[LockEntry], list[LockEntry]]:
    """Returns what is computed more often, and what less, if that is a difference."""
    old = Counter(before)
    new = Counter(after)
    forward = {entry.text for entry in old + new if entry.kind != MIRRORED}
    added: list[LockEntry] = []
    removed: list[LockEntry] = []
    for kind in KINDS:
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
    for path, name in grouped(new).items():
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
Causes = tuple[list[LockCause], list[Function], list[TypesChange]]
_Changes = dict[Function, FunctionChange]
_Makers = dict[int, Computation]


def causes(
    functions: Iterable[FunctionChange], leaves: Iterable[TypesChange], now: TracedStep
) -> Causes:
    """Finds the lines behind differences, but for functions that only moved."""
    changes = {x.function: x for x in functions if x.added or x.removed}
    makers = {value: call for call in now.computations for value in call.gives}
    # An input stands at the first line that takes it.
    inputs: dict[Origin, list[TypesChange]] = {}
    rest: list[TypesChange] = []
    for change in leaves:
        is_input = change.what.startswith(INPUTS) and change.before
        given = {leaf.value for leaf in change.leaves if is_input}
        first = next((x.line for x in now.computations if given & x.takes.keys()), None)
        (inputs.setdefault(first, []) if first else rest).append(change)
    given = [leaf.value for x in itertools.chain(*inputs.values()) for leaf in x.leaves]
    blamed = _blamed(changes, now.computations, makers, given)
    lines = [LockCause([*dict.fromkeys(each)], changes[x]) for x, each in blamed.items()]
    lines += [LockCause([line], None, each) for line, each in inputs.items()]
    if rest and not lines:
        first = [makers[y.value] for x in rest for y in x.leaves[:1] if y.value in makers]
        lines, rest = [LockCause([x.line for x in first], None, rest)], []
    return lines, [x for x in changes if x not in blamed], rest


def _blamed(
    changes: _Changes, calls: Sequence[Computation], makers: _Makers, inputs: Sequence[int]
) -> dict[Function, list[Origin]]:
    """The lines that changed, by the function whose types they changed."""
    blamed: dict[Function, list[Origin]] = {}
    takers: dict[int, list[Computation]] = {}
    for call in calls:
        for value in call.takes:
            takers.setdefault(value, []).append(call)
    reached: set[Computation] = set()

    def reach(values: Iterable[int]) -> None:
        """Marks all calls that values go to."""
        left = [*values]
        while left:
            new = [x for x in takers.get(left.pop(), ()) if x not in reached]
            reached.update(new)
            left += [value for x in new for value in x.gives]

    reach(inputs)
    added = {
        call: {*changes[call.function].added}.intersection(call.entries)
        for call in calls
        if call.function in changes
    }
    # Those that no call of their function was like before, and what these take.
    new = {x for x in added if not added[x].issubset(changes[x.function].before)}
    given = {value for x in new for value in x.takes}
    is_sure = lambda x: x in new or not given.isdisjoint(x.gives)
    order = lambda x: (x.is_backward, not is_sure(x), min(x.gives, default=0))
    for call in sorted(added, key=order):
        function, line = call.function, call.line
        if call.is_backward and blamed:  # it follows from the forward pass
            break
        if _is_own(added[call], changes[function]):
            is_cause = is_sure(call) or (call not in reached and function not in blamed)
        elif is_cause := call in new and call not in reached:
            function, line = _behind(call, added[call], changes, makers)
        if is_cause:
            blamed.setdefault(function, []).append(line)
            reached.add(call)
            reach(call.gives)
    if not (blamed or inputs):  # they only compute less: no call tells more
        blamed = {x: [y.line for y in calls if y.function == x][-1:] for x in changes}
    return {x: [*dict.fromkeys(each)] for x, each in blamed.items()}


def _is_own(added: Iterable[LockEntry], change: FunctionChange) -> bool:
    """Whether a call takes what calls of its function took, and computes otherwise."""
    taken = {(x.kind, x.operands) for x in change.removed}
    # A cast is new where nothing else of its function took such values.
    taken |= {(CAST, x.operands) for x in change.before if x.kind != CAST}
    return any((x.kind, x.operands) in taken for x in added)


def _behind(
    call: Computation, added: Iterable[LockEntry], changes: _Changes, makers: _Makers
) -> tuple[Function, Origin]:
    """The line without the cast of an operand: `h = x`, a call, or what made it."""
    types = set[str]()
    for entry in added:
        removed = changes[call.function].removed
        before = [x.operands for x in removed if x.kind == entry.kind]
        types |= entry.operands - frozenset.intersection(*before or [frozenset()])
    function_of = {x.chain[0][0]: x.function for x in (call, *makers.values())}
    made = [makers[x].chain for x in call.takes if x in makers]
    for code, instruction in itertools.chain(call.chain, *made):
        change = changes.get(function_of.get(code, call.function))
        node = expression(code, instruction)
        casts = [x for x in change.removed if x.kind == CAST] if change else []
        if not (change and node and any(x.operands <= types for x in casts)):
            continue
        # What made an operand stands where the cast was.
        parts = ast.walk(node) if (code, instruction) in call.chain else ()
        names = [x.id for x in parts if isinstance(x, ast.Name)]
        before = (renamed_before(code.co_filename, x, node.lineno) for x in names)
        line = next(filter(None, before), None)
        if line or code.co_name != "<lambda>":  # which is given its operands
            return change.function, line_in(code, line or node.lineno)
    return call.function, call.line
