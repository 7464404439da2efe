"""The lines of source behind what changed. They are looked for after a check has failed.

A change of type goes on to all that uses a value. The cause is the first call in the
program that computes otherwise and takes nothing of one before. A call that takes what it
took, and computes otherwise, is a cause wherever it stands.
"""

import ast
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import NamedTuple

from .._lines.equations import Written
from .._source.origin import Origin, origin_at
from .._source.syntax import expression, renamed_before
from .compare import OUTPUTS, Differences, FunctionChange, LeafChange
from .computations import CAST, Computation, Function, function_name
from .step import TracedStep


class LockCause(NamedTuple):
    """A line that changed, or an input.

    Attributes:
        lines: where it is now; several if the lock does not tell them apart.
        change: what a function computes otherwise; None of an input.
        leaves: the inputs, carry or outputs that change their types there.
        kinds: of the entries that these lines themselves change.
    """

    lines: Sequence[Origin]
    change: FunctionChange | None = None
    leaves: Sequence[LeafChange] = ()
    kinds: frozenset[str] = frozenset()


class Causes(NamedTuple):
    """The causes of differences, and what changed only because of them."""

    causes: list[LockCause]
    functions: list[tuple[Function, Origin]]
    leaves: list[LeafChange]


def causes(found: Differences, now: TracedStep) -> Causes:
    """Finds the lines behind differences."""
    return _Search(found, now).run()


class _Search:
    def __init__(self, found: Differences, now: TracedStep):
        self._found, self._all = found, now.computations
        self._changes = {x.function: x for x in found.functions}
        self._maker = {value: x for x in self._all for value in x.gives}
        self._takers: dict[int, list[Computation]] = {}
        for each in self._all:
            for value in each.takes:
                self._takers.setdefault(value, []).append(each)
        self._backward = {x.chain: x for x in self._all if x.is_backward}
        self._reached: set[Computation] = set()

    def run(self) -> Causes:
        inputs = self._of_inputs()
        blamed: dict[Function, list[Computation]] = {}
        so: dict[Function, Origin] = {}
        for each in filter(self._is_changed, self._all):
            change, is_own = self._changes[each.function], self._is_own(each)
            if each in self._reached and (each.is_backward or not is_own):
                so.setdefault(each.function, self._line(each))
                continue
            blamed.setdefault(each.function, []).append(each)
            if each.function not in so:
                self._reach([each])
                for value in () if is_own else self._widened(each):
                    self._reach(self._takers.get(value, ()))
        found: list[LockCause] = []
        for function, calls in blamed.items():
            found.append(self._cause(calls))
            so.setdefault(function, self._line(calls[0]))
        found += inputs  # a line may change what is given, by what makes it
        known = {x.change.function for x in found if x.change}
        for change in self._found.functions:
            if change.function in known or change.function in so:
                continue
            # It only computes less: no call of it tells more.
            calls = [x for x in self._all if x.function == change.function]
            if self._reached.isdisjoint(calls):
                found.append(LockCause([*map(self._line, calls[-1:])], change))
                known.add(change.function)
            else:
                so[change.function] = self._line(calls[0])
        others, leaves = self._of_leaves(found)
        places = {str(line) for cause in found + others for line in cause.lines}
        following = [
            (function, line)
            for function, line in so.items()
            if function not in known and str(line) not in places
        ]
        return Causes(found + others, following, leaves)

    def _of_inputs(self) -> list[LockCause]:
        """The inputs that changed, by the first line that takes them."""
        given: dict[Origin, list[LeafChange]] = {}
        for change in self._found.leaves:
            before, after = (x.partition(" -> ")[0] for x in (change.before, change.after))
            values = {leaf.value for leaf in change.leaves if change.table != OUTPUTS}
            takers = [x for x in self._all if not values.isdisjoint(x.takes)]
            if takers and before and before != after:
                given.setdefault(self._line(takers[0]), []).append(change)
                self._reach(takers)
        return [LockCause([line], leaves=changes) for line, changes in given.items()]

    def _of_leaves(
        self, found: list[LockCause]
    ) -> tuple[list[LockCause], list[LeafChange]]:
        """The leaves that changed of themselves, and those that follow from causes."""
        known = {id(change) for cause in found for change in cause.leaves}
        others: dict[Origin | None, list[LeafChange]] = {}
        following: list[LeafChange] = []
        for change in self._found.leaves:
            if id(change) in known:
                continue
            made = [self._maker[x.made] for x in change.leaves if x.made in self._maker]
            if found and (not made or not self._reached.isdisjoint(made)):
                following.append(change)
            else:
                line = self._line(made[-1]) if made else None
                others.setdefault(line, []).append(change)
        return [LockCause([x] if x else [], None, y) for x, y in others.items()], following

    def _is_changed(self, call: Computation) -> bool:
        """Whether a call computes otherwise, as far as the lock tells."""
        change = self._changes.get(call.function)
        added = {*change.added}.intersection(call.entries) if change else ()
        # What only moves values may have been there before as well.
        return any(not (call.is_move and x in change.before) for x in added)

    def _reach(self, start: Iterable[Computation]) -> None:
        """Marks calls, and all that takes what they give."""
        left = [*start]
        while left:
            each = left.pop()
            if each not in self._reached:
                self._reached.add(each)
                left += [x for value in each.gives for x in self._takers.get(value, ())]
                left += filter(None, [self._backward.get(each.chain)])

    def _is_own(self, call: Computation) -> bool:
        """Whether a call takes what calls of its function took, and computes otherwise."""
        change = self._changes[call.function]
        taken = {x.operands for x in change.before if x.kind != CAST}
        return any(x in change.added and x.operands in taken for x in call.entries)

    def _widened(self, call: Computation) -> list[int]:
        """The operands of a type that the lock does not have there."""
        change, types = self._changes[call.function], set[str]()
        for entry in {*change.added}.intersection(call.entries):
            before = [x.operands for x in change.removed if x.kind == entry.kind]
            types |= entry.operands - frozenset.intersection(*before or [frozenset()])
        return [value for value, aval in call.takes.items() if str(aval.dtype) in types]

    def _cause(self, calls: list[Computation]) -> LockCause:
        """The cause of calls of a function that compute otherwise."""
        change = self._changes[calls[0].function]
        # Calls that compute so and did before are told apart by no lock.
        lines = [self._line(x) if self._is_own(x) else self._line_behind(x) for x in calls]
        if not self._is_own(calls[0]):
            for other in self._changes.values():
                if other is not change and other.function[1] == lines[0].function:
                    return LockCause(lines[:1], other)  # which left out a cast
        added = (e for x in calls for e in x.entries if e in change.added)
        kinds = frozenset(entry.kind for entry in added)
        return LockCause([*dict.fromkeys(lines)], change, (), kinds)

    def _line(self, call: Computation) -> Origin:
        """The line of the call itself."""
        code, instruction = call.chain[0]
        node = expression(code, instruction)
        line = getattr(node, "lineno", None)
        if line is None:
            origin = Written(call.stack).origin
            line = origin.users.line if origin else code.co_firstlineno
        return _origin(code, line)

    def _line_behind(self, call: Computation) -> Origin:
        """The line without the cast of an operand: `h = x`, a call, or what made it."""
        values = self._widened(call)
        starts = tuple(f"{call.takes[value].dtype} -> " for value in values)
        without = {
            change.function
            for change in self._changes.values()
            if any(x.kind == CAST and x.text.startswith(starts) for x in change.removed)
        }
        function_of = {each.chain[0][0]: each.function for each in self._all}
        used: Origin | None = None
        for code, instruction in call.chain:
            node = expression(code, instruction)
            if node is None or function_of.get(code) not in without:
                continue
            names = [x.id for x in ast.walk(node) if isinstance(x, ast.Name)]
            before = (renamed_before(code.co_filename, x, node.lineno) for x in names)
            line = next(filter(None, before), None)
            used = used or _origin(code, line or node.lineno)
            if line is not None:
                return _origin(code, line)
            if code.co_name != "<lambda>":  # which is given its operands
                return used
        for maker in [self._maker[value] for value in values if value in self._maker]:
            for code, instruction in maker.chain:
                if function_of.get(code) in without:
                    node = expression(code, instruction)
                    return _origin(code, node.lineno) if node else self._line(maker)
        return used or self._line(call)


def _origin(code: CodeType, line: int) -> Origin:
    return origin_at(code.co_filename, line, function_name(code))
