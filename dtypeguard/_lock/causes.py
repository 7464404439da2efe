"""The lines of source behind the differences between a lock and a step."""

import ast
import collections
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType
from typing import NamedTuple

from .._source.origin import Origin
from .._source.syntax import Expression, expression, renamed_before
from .compare import ChangedRow, FunctionChange, LeavesChange
from .computations import CAST, OTHER, Computation, LockedFunction, line_in
from .step import INPUTS, TracedStep

_Changes = Mapping[LockedFunction, FunctionChange]


class LockCause(NamedTuple):
    """A line that changed, or an input.

    Attributes:
        lines: several that the lock does not tell apart.
        function: the function that changed; None of an input.
        rows: what changed.
    """

    lines: Sequence[Origin]
    function: LockedFunction | None
    rows: Sequence[ChangedRow]


def find_causes(
    functions: Iterable[FunctionChange], leaves: Iterable[LeavesChange], step: TracedStep
) -> list[LockCause]:
    """Finds the lines behind differences, but for functions that only moved."""
    changes = {change.function: change for change in functions if change.rows}
    rows = []
    values = set()
    changed_inputs = []
    odd_values = set()
    for change in leaves:
        rows.append(change.row)
        values |= change.values
        if change.table == INPUTS and change.row.locked:
            changed_inputs.append(change)
            odd_values |= change.values
    causes = _causes_in_functions(changes, odd_values, step)
    causes += _causes_in_inputs(changed_inputs, step)
    if causes or not rows:
        return causes
    # All functions compute as locked, so the step returns another of their values.
    lines = [maker.line for maker in step.makers(values)]
    return [LockCause(lines[:1], None, rows)]


def _causes_in_inputs(
    changed_inputs: Iterable[LeavesChange], step: TracedStep
) -> list[LockCause]:
    rows_of_line = collections.defaultdict(list)
    for change in changed_inputs:
        # An input has no line of its own: it stands at the first that takes it.
        for taker in step.takers(change.values)[:1]:
            rows_of_line[taker.line].append(change.row)
    return [LockCause([line], None, rows) for line, rows in rows_of_line.items()]


def _causes_in_functions(
    changes: _Changes, odd_values: set[int], step: TracedStep
) -> list[LockCause]:
    blamed = _blamed_lines(changes, odd_values, step)
    if not blamed and not odd_values:
        # They only compute less, and what is gone has no line: their last call is near.
        for call in step.computations:
            if call.function in changes:
                blamed[call.function] = [call.line]
    causes = []
    for function, lines in blamed.items():
        rows = changes[function].rows
        causes.append(LockCause(lines, function, rows))
    return causes


def _blamed_lines(
    changes: _Changes, odd_values: set[int], step: TracedStep
) -> dict[LockedFunction, list[Origin]]:
    """Returns the lines that changed, by the function whose types they changed."""
    # A change of type goes on to all that is made of a value. So a cause is a call that
    # computes otherwise, and takes nothing that is made of another cause.
    suspects = _suspects(changes, step)
    blamed = {}
    for call in sorted(step.computations, key=_order):
        is_odd = not odd_values.isdisjoint(call.takes)
        # A backward pass follows from the forward one.
        if call in suspects and not is_odd and not (call.is_backward and blamed):
            function, line = _place(call, changes, step)
            lines = blamed.setdefault(function, [])
            if line not in lines:
                lines.append(line)
            is_odd = True
        if is_odd:
            odd_values = odd_values.union(call.gives)
    return blamed


def _order(call: Computation) -> tuple[bool, int]:
    # Values are numbered in the order of the program.
    return call.is_backward, min(call.gives, default=0)


def _suspects(changes: _Changes, step: TracedStep) -> set[Computation]:
    """Returns the calls that surely changed.

    No call of its function computed so before, or it makes an operand of such a one.
    """
    certain = set()
    candidates = set()
    operands = set()
    for call in step.computations:
        if call.function not in changes:
            continue
        change = changes[call.function]
        for entry in set(call.entries).intersection(change.added):
            if entry.text not in change.before[entry.kind]:
                certain.add(call)
                operands.update(call.takes)
            # Arithmetic asks for no type: it follows from its operands.
            if entry.kind != OTHER:
                candidates.add(call)
    return certain | candidates.intersection(step.makers(operands))


def _place(
    call: Computation, changes: _Changes, step: TracedStep
) -> tuple[LockedFunction, Origin]:
    """Returns the line of a call, or that from which a cast of an operand is gone."""
    change = changes[call.function]
    replaced = {(entry.kind, entry.takes) for entry in change.removed}
    for entry in set(call.entries).intersection(change.added):
        # It takes what it took before: its operands are as they were.
        if entry.kind == CAST or (entry.kind, entry.takes) in replaced:
            return call.function, call.line
    # What made an operand stands where the cast was.
    chain = list(call.chain)
    for maker in step.makers(call.takes.keys()):
        chain += maker.chain
    for code, instruction in chain:
        function = step.function_of(code)
        node = expression(code, instruction)
        if node is None or not _lost_cast(changes.get(function)):
            continue
        line = _line_of_renaming(code, node)
        # A lambda is given its operands.
        if line or code.co_name != "<lambda>":
            return function, line_in(code, line or node.lineno)
    return call.function, call.line


def _lost_cast(change: FunctionChange | None) -> bool:
    """Returns whether a function has a cast less."""
    if change is None:
        return False
    return any(entry.kind == CAST for entry in change.removed)


def _line_of_renaming(code: CodeType, node: Expression) -> int:
    """Returns the last line on which a name of an expression is renamed; 0 if none is."""
    last_line = 0
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            line = renamed_before(code, part.id, node.lineno)
            last_line = max(last_line, line or 0)
    return last_line
