"""What differs between a lock and a step, and the lines of source behind it.

The lines are looked for after a check has failed. A change of type goes on to all that uses
a value. The cause is a call that computes otherwise and takes nothing of one that does. A
call that takes what its function took, and computes otherwise, is one wherever it stands.
"""

import ast
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import NamedTuple

from .._source.origin import Origin, origin_at
from .._source.syntax import expression, renamed_before
from .computations import CAST, MIRRORED, Computation, Function, LockEntry, function_name
from .step import Lock, TracedStep, TypedLeaf, covering, fold, grouped

INPUTS, OUTPUTS = "inputs", "outputs"
_Pair = tuple[list[LockEntry], list[LockEntry]]


class FunctionChange(NamedTuple):
    """A function that computes otherwise: what is new or in more calls, and the reverse."""

    function: Function
    added: Sequence[LockEntry]
    removed: Sequence[LockEntry]
    before: Sequence[LockEntry]  # all that it computed
    moved_from: Function | None = None  # what it was, under another name or in another file

    @property
    def name(self) -> str:
        """The file and the function."""
        return ":".join(self.function)


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


def differences(locked: Lock, now: TracedStep) -> Differences:
    """Compares a lock with a step as it is now.

    A call more or less that computes as others of the function do is no difference. One
    that goes from one line of the lock to another is.
    """
    functions = now.lock.functions
    gone = {x: was for x, was in locked.functions.items() if x not in functions}
    changes: list[FunctionChange] = []
    for function, entries in functions.items():
        is_known = function in locked.functions
        moved = [] if is_known else _moved_from(function, entries, gone)
        was = gone.pop(moved[0]) if moved else locked.functions.get(function, [])
        if any(pair := _compared(was, entries)) or moved:
            changes.append(FunctionChange(function, *pair, was, *moved))
    changes += [FunctionChange(x, *_compared(was, ()), was) for x, was in gone.items()]
    leaves = [
        LeafChange(table, *change)
        for table in (INPUTS, OUTPUTS)
        for change in _leaves(getattr(locked, table), now.leaves[table])
    ]
    return Differences(changes, leaves)


def _moved_from(
    function: Function, entries: Sequence[LockEntry], gone: dict[Function, list[LockEntry]]
) -> list[Function]:
    """The function of those that are gone that computes the same, or has the same name."""
    same = [x for x, was in gone.items() if not any(_compared(was, entries))]
    same.sort(key=lambda x: x[1] != function[1])  # the same name in another file first
    return [*same, *(x for x in gone if x[1] == function[1])][:1]


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
                names = ", ".join(sorted({leaf.name for leaf in same}))
                yield path + rest, types[path], names, same
    for path, name in grouped(new).items():
        yield path, "", name, [x for x in new if covering([path], x.path)[0]]


class LockCause(NamedTuple):
    """A line that changed, or an input."""

    lines: Sequence[Origin]  # several if the lock does not tell them apart
    change: FunctionChange | None = None  # None of an input
    leaves: Sequence[LeafChange] = ()


class Causes(NamedTuple):
    """The causes of differences, and what changed only because of them."""

    causes: list[LockCause]
    functions: list[Function]
    leaves: list[LeafChange]


def causes(found: Differences, now: TracedStep) -> Causes:
    """Finds the lines behind differences."""
    search = _Search(found, now.computations)
    blamed = search.blamed()
    lines = [
        LockCause([*dict.fromkeys(lines)], search.changes[function])
        for function, lines in blamed.items()
    ]
    lines += search.of_inputs()
    functions = [function for function in search.changes if function not in blamed]
    told = {id(change) for cause in lines for change in cause.leaves}
    leaves = [x for x in found.leaves if id(x) not in told]
    if lines or not leaves:
        return Causes(lines, functions, leaves)
    makers = [search.maker.get(y.value) for x in leaves for y in x.leaves[:1]]
    return Causes([LockCause([_line(x) for x in makers if x], None, leaves)], [], [])


class _Search:
    """The calls of a step, by what they take and give, and what changed of them."""

    def __init__(self, found: Differences, calls: Sequence[Computation]):
        self._all = calls
        self.changes = {x.function: x for x in found.functions}
        self.maker = {value: x for x in calls for value in x.gives}
        self._takers: dict[int, list[Computation]] = {}
        for call in calls:
            for value in call.takes:
                self._takers.setdefault(value, []).append(call)
        self._inputs = {
            leaf.value: change
            for change in found.leaves
            if change.table == INPUTS and change.before
            for leaf in change.leaves
        }
        self._reached: set[Computation] = set()

    def blamed(self) -> dict[Function, list[Origin]]:
        """The lines that changed, by the function whose types they changed."""
        changed = [*filter(self._is_changed, self._all)]
        # Those that no call of their function was like before, and what they take.
        is_new = lambda x: not {*self.changes[x.function].before}.issuperset(x.entries)
        new = {*filter(is_new, changed)}
        given = {value for x in new for value in x.takes}
        blamed: dict[Function, list[Origin]] = {}
        alike: dict[Function, list[Origin]] = {}  # lines that the lock does not tell apart
        for value in self._inputs:
            self._reach(self._takers.get(value, ()))
        # A backward pass follows from the forward one, if that changes.
        for call in sorted(changed, key=lambda x: x.is_backward):
            if call.is_backward and blamed:
                break
            if self._is_own(call):
                is_sure = call in new or not given.isdisjoint(call.gives)
                lines = blamed if is_sure else alike
                if is_sure or call not in self._reached:
                    lines.setdefault(call.function, []).append(_line(call))
                self._reach([call] * is_sure)
            elif call not in self._reached:
                line = self._line_behind(call)
                left_out = (x for x in self.changes if x[1] == line.function)
                blamed.setdefault(next(left_out, call.function), []).append(line)
                self._reach([call])
        blamed = alike | blamed
        for function in [x for x in self.changes if x not in blamed]:
            # It may only compute less: no call of it tells more.
            calls = [x for x in self._all if x.function == function]
            if self._reached.isdisjoint(calls) and not {*changed}.intersection(calls):
                blamed[function] = [*map(_line, calls[-1:])]
        return blamed

    def of_inputs(self) -> list[LockCause]:
        """The inputs that changed, by the first line that takes them."""
        given: dict[Origin, list[LeafChange]] = {}
        told: list[LeafChange] = []
        for call in self._all:
            for value in call.takes:
                if (change := self._inputs.get(value)) and change not in told:
                    told.append(change)
                    given.setdefault(_line(call), []).append(change)
        return [LockCause([line], None, changes) for line, changes in given.items()]

    def _is_changed(self, call: Computation) -> bool:
        """Whether a call computes otherwise, as far as the lock tells."""
        change = self.changes.get(call.function)
        if change is None:
            return False
        # What only moves values may have been there before as well.
        added = {*change.added}.intersection(call.entries)
        return any(not (call.is_move and x in change.before) for x in added)

    def _reach(self, calls: Iterable[Computation]) -> None:
        """Marks calls, and all that takes what they give."""
        left = [*calls]
        while left:
            each = left.pop()
            if each not in self._reached:
                self._reached.add(each)
                left += [x for value in each.gives for x in self._takers.get(value, ())]

    def _is_own(self, call: Computation) -> bool:
        """Whether a call takes what calls of its function took, and computes otherwise."""
        change = self.changes[call.function]
        taken = {(x.kind, x.operands) for x in change.removed}
        # A cast is new where nothing else of its function took such values.
        taken |= {(CAST, x.operands) for x in change.before if x.kind != CAST}
        added = {*change.added}.intersection(call.entries)
        return any((x.kind, x.operands) in taken for x in added)

    def _line_behind(self, call: Computation) -> Origin:
        """The line without the cast of an operand: `h = x`, a call, or what made it."""
        change, types = self.changes[call.function], set[str]()
        for entry in {*change.added}.intersection(call.entries):
            before = [x.operands for x in change.removed if x.kind == entry.kind]
            types |= entry.operands - frozenset.intersection(*before or [frozenset()])
        starts = tuple(f"{name} -> " for name in types)
        without = {
            function
            for function, other in self.changes.items()
            if any(x.kind == CAST and x.text.startswith(starts) for x in other.removed)
        }
        function_of = {x.chain[0][0]: x.function for x in self._all}
        for code, instruction in call.chain:
            node = expression(code, instruction)
            if node is None or function_of.get(code) not in without:
                continue
            names = [x.id for x in ast.walk(node) if isinstance(x, ast.Name)]
            before = (renamed_before(code.co_filename, x, node.lineno) for x in names)
            if line := next(filter(None, before), None):
                return _origin(code, line)
            if code.co_name != "<lambda>":  # which is given its operands
                return _origin(code, node.lineno)
        for value, aval in call.takes.items():
            maker = self.maker.get(value) if str(aval.dtype) in types else None
            for inner in maker.chain if maker else ():
                if function_of.get(inner[0]) in without:
                    return _origin(inner[0], _number(*inner))
        return _line(call)


def _line(call: Computation) -> Origin:
    """The line of a call itself."""
    return _origin(call.chain[0][0], _number(*call.chain[0]))


def _number(code: CodeType, instruction: int) -> int:
    places = itertools.islice(code.co_positions(), instruction // 2, None)
    return next(places, (None,))[0] or code.co_firstlineno


def _origin(code: CodeType, line: int) -> Origin:
    return origin_at(code.co_filename, line, function_name(code))
