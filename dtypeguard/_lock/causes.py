"""The lines of source behind the differences between a lock and a step."""

import ast
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import NamedTuple

from .._source.origin import Origin
from .._source.syntax import Expression, expression, renamed_before
from .compare import FunctionChange, TypesChange
from .computations import CAST, Computation, LockedFunction, LockEntry, line_in
from .step import INPUTS, TracedStep


class LockCause(NamedTuple):
    """A line that changed, or an input.

    Attributes:
        lines: several that the lock does not tell apart.
        change: of a function; None of an input.
        leaves: those of other types.
    """

    lines: Sequence[Origin]
    change: FunctionChange | None = None
    leaves: Sequence[TypesChange] = ()


class LockCauses(NamedTuple):
    """What is behind differences.

    Attributes:
        causes: the lines and inputs that changed.
        functions: those that changed only because of them.
        leaves: the leaves that changed only because of them.
    """

    causes: list[LockCause]
    functions: list[LockedFunction]
    leaves: list[TypesChange]


def find_causes(
    functions: Iterable[FunctionChange], leaves: Iterable[TypesChange], step: TracedStep
) -> LockCauses:
    """Finds the lines behind differences, but for functions that only moved."""
    changes: dict[LockedFunction, FunctionChange] = {}
    for change in functions:
        if change.added or change.removed:
            changes[change.function] = change
    # An input stands at the first line that takes it.
    inputs: dict[Origin, list[TypesChange]] = {}
    outputs: list[TypesChange] = []
    for change in leaves:
        line = _first_line_of_input(change, step.computations)
        if line is None:
            outputs.append(change)
        else:
            inputs.setdefault(line, []).append(change)
    search = _CauseSearch(changes, step.computations)
    for group in inputs.values():
        # A changed input explains all that is computed of it: no line of that is to blame.
        search.explain([leaf.value for change in group for leaf in change.leaves])
    blamed = search.find_lines()
    if not blamed and not inputs:
        # They only compute less, and what is gone has no line: their last call is near.
        for function in changes:
            calls = [call for call in step.computations if call.function == function]
            blamed[function] = [call.line for call in calls[-1:]]
    causes = [LockCause(lines, changes[function]) for function, lines in blamed.items()]
    causes += [LockCause([line], None, group) for line, group in inputs.items()]
    # All functions compute as locked, so the step returns another of their values.
    if outputs and not causes:
        lines = search.lines_of(outputs)
        return LockCauses([LockCause(lines, None, outputs)], [], [])
    followers = [function for function in changes if function not in blamed]
    return LockCauses(causes, followers, outputs)


def _first_line_of_input(
    change: TypesChange, calls: Iterable[Computation]
) -> Origin | None:
    """Returns the first line that takes one of several inputs; None for outputs."""
    if not change.what.startswith(INPUTS) or not change.before:
        return None
    # An input has no line of its own: a reader looks where it is used.
    values = {leaf.value for leaf in change.leaves}
    for call in calls:
        if values & call.takes.keys():
            return call.line
    return None


class _CauseSearch:
    """Searches the calls of a step for those behind changed functions.

    A change of type goes on to all that uses a value. So a cause is a call that computes
    otherwise, and takes nothing of one that does.

    Args:
        changes: of functions.
        calls: of the step, in order.
    """

    def __init__(
        self, changes: dict[LockedFunction, FunctionChange], calls: Sequence[Computation]
    ):
        self._changes = changes
        self._calls = calls
        self._explained: set[Computation] = set()
        self._makers: dict[int, Computation] = {}
        self._takers: dict[int, list[Computation]] = {}
        for call in calls:
            for value in call.gives:
                self._makers[value] = call
            for value in call.takes:
                self._takers.setdefault(value, []).append(call)

    def explain(self, values: Iterable[int]) -> None:
        """Marks all calls that values go to, whatever they compute with them."""
        waiting = list(values)
        while waiting:
            for call in self._takers.get(waiting.pop(), ()):
                if call not in self._explained:
                    self._explained.add(call)
                    waiting += call.gives

    def lines_of(self, leaves: Iterable[TypesChange]) -> list[Origin]:
        """Returns the lines that make outputs of other types."""
        lines: list[Origin] = []
        for change in leaves:
            # A leaf that is gone has no value any more.
            if not change.leaves:
                continue
            maker = self._makers.get(change.leaves[0].value)
            if maker is not None:
                lines.append(maker.line)
        return lines

    def find_lines(self) -> dict[LockedFunction, list[Origin]]:
        """Returns the lines that changed, by the function whose types they changed."""
        blamed: dict[LockedFunction, list[Origin]] = {}
        new_calls = [call for call in self._calls if self._is_new(call)]
        new_operands = {value for call in new_calls for value in call.takes}

        # What gives an operand to a new call has surely changed as well.
        def rank(call: Computation) -> tuple[bool, bool, int]:
            is_sure = call in new_calls or not new_operands.isdisjoint(call.gives)
            # Values are numbered in the order of the program.
            return call.is_backward, not is_sure, min(call.gives, default=0)

        candidates = [call for call in self._calls if call.function in self._changes]
        for call in sorted(candidates, key=rank):
            if call.is_backward and blamed:  # it follows from the forward pass
                break
            if call in self._explained:
                continue
            function = call.function
            line = call.line
            if not self._replaces_entry(call):
                if call not in new_calls:
                    continue
                function, line = self._place_without_cast(call)
            lines = blamed.setdefault(function, [])
            if line not in lines:
                lines.append(line)
            # What takes its results computes otherwise because of it.
            self._explained.add(call)
            self.explain(call.gives)
        return blamed

    def _added_entries(self, call: Computation) -> set[LockEntry]:
        change = self._changes.get(call.function)
        if change is None:
            return set()
        return set(call.entries).intersection(change.added)

    def _is_new(self, call: Computation) -> bool:
        """Returns whether no call of its function computed so before."""
        added = self._added_entries(call)
        return bool(added) and not added.issubset(self._changes[call.function].before)

    def _replaces_entry(self, call: Computation) -> bool:
        """Returns whether it takes what a call of its function took, and differs."""
        change = self._changes[call.function]
        taken_before = {(entry.kind, entry.operands) for entry in change.removed}
        # A new cast stands in the place of what computed with such values before.
        for entry in change.before:
            if entry.kind != CAST:
                taken_before.add((CAST, entry.operands))
        for entry in self._added_entries(call):
            if (entry.kind, entry.operands) in taken_before:
                return True
        return False

    def _place_without_cast(self, call: Computation) -> tuple[LockedFunction, Origin]:
        """Returns where the cast of an operand was: a renaming, a call, or its maker."""
        makers = [self._makers[value] for value in call.takes if value in self._makers]
        # A chain holds code objects, and changes go by the names that the lock has.
        function_of = {maker.chain[0][0]: maker.function for maker in self._makers.values()}
        function_of[call.chain[0][0]] = call.function
        for computation in (call, *makers):
            for code, instruction in computation.chain:
                change = self._changes.get(function_of.get(code, call.function))
                node = expression(code, instruction)
                if change is None or node is None or not _lost_cast(change):
                    continue
                # What made an operand stands where the cast was.
                line = None
                if (code, instruction) in call.chain:
                    line = _line_of_renaming(code, node)
                if line or code.co_name != "<lambda>":  # which is given its operands
                    return change.function, line_in(code, line or node.lineno)
        return call.function, call.line


def _lost_cast(change: FunctionChange) -> bool:
    return any(entry.kind == CAST for entry in change.removed)


def _line_of_renaming(code: CodeType, node: Expression) -> int | None:
    """Returns the line on which a name of an expression is set to another name."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            line = renamed_before(code, part.id, node.lineno)
            if line:
                return line
    return None
