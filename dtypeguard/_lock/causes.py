"""The lines of source behind the differences between a lock and a step."""

import ast
import collections
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType
from typing import NamedTuple

from .._source.origin import Origin
from .._source.syntax import Expression, expression, renamings_before
from .compare import ChangedRow, FunctionChange, LeavesChange
from .computations import CAST, OTHER, Computation, LockedFunction, line_in
from .step import INPUTS, TracedStep

_Changes = Mapping[LockedFunction, FunctionChange]


class LockCause(NamedTuple):
    """A line that changed, or an input.

    Attributes:
        lines: several that the lock does not tell apart.
        function: the function that changed; None of an input.
        changes: what changed.
    """

    lines: Sequence[Origin]
    function: LockedFunction | None
    changes: Sequence[ChangedRow]  # a key of the JSON


def find_causes(
    functions: Iterable[FunctionChange], leaves: Sequence[LeavesChange], step: TracedStep
) -> list[LockCause]:
    """Finds the lines behind differences, but for functions that only moved."""
    changes: _Changes = {}
    for change in functions:
        if change.rows:
            changes[change.function] = change
    rows_of_line = collections.defaultdict(list)
    odd_values = set()
    for change in leaves:
        if change.table != INPUTS:
            continue
        # A new input had no type that could change.
        if not change.row.locked:
            continue
        odd_values |= change.values
        # An input has no line of its own: it stands at the first that takes it.
        for call in step.computations:
            if call.takes.keys() & change.values:
                rows_of_line[call.line].append(change.row)
                break
    lines_of_function = _blamed_lines(changes, odd_values, step)
    if not (lines_of_function or odd_values):
        # They only compute less, and what is gone has no line.
        for function in changes:
            lines_of_function[function] = []
    causes = []
    for function, lines in lines_of_function.items():
        cause = LockCause(lines, function, changes[function].rows)
        causes.append(cause)
    for line, rows in rows_of_line.items():
        cause = LockCause([line], None, rows)
        causes.append(cause)
    if causes:
        return causes
    # What only moved has no cause.
    if not leaves:
        return []
    # All functions compute as locked, so the step returns another of their values.
    file, _, name = step.lock.step.rpartition(":")
    function = (file, name)
    rows = [change.row for change in leaves]
    return [LockCause([], function, rows)]


def _blamed_lines(
    changes: _Changes, odd_values: set[int], step: TracedStep
) -> dict[LockedFunction, list[Origin]]:
    """Returns the lines that changed, by the function whose types they changed."""
    # A change of type goes on to all that is made of a value. So a cause is a call that
    # computes otherwise, and takes nothing that is made of another cause.
    suspects = _suspects(changes, step)
    blamed = collections.defaultdict(list)
    # The calls are in the order of the program.
    for call in step.computations:
        if call.takes.keys() & odd_values:
            odd_values = odd_values.union(call.gives)
            continue
        if call not in suspects:
            continue
        # A backward pass follows from the forward one.
        if call.is_backward and blamed:
            continue
        odd_values = odd_values.union(call.gives)
        function, line = _place(call, changes, step)
        if line not in blamed[function]:
            blamed[function].append(line)
    return blamed


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
        for entry in change.added.intersection(call.entries):
            if entry in change.unseen:
                certain.add(call)
                operands.update(call.takes)
            # Arithmetic asks for no type: it follows from its operands.
            elif entry.kind != OTHER:
                candidates.add(call)
    makers = step.makers(operands)
    certain |= candidates.intersection(makers)
    return certain


def _place(
    call: Computation, changes: _Changes, step: TracedStep
) -> tuple[LockedFunction, Origin]:
    """Returns the line of a call, or that from which a cast of an operand is gone."""
    change = changes[call.function]
    replaced = {entry.task for entry in change.removed}
    for entry in change.added.intersection(call.entries):
        # It takes what it took before: its operands are as they were.
        if entry.kind == CAST or entry.task in replaced:
            return call.function, call.line
    # What made an operand stands where the cast was.
    chain = list(call.chain)
    for maker in step.makers(call.takes.keys()):
        chain.append(maker.chain[0])
    for code, instruction in chain:
        function = step.function_of(code)
        if function not in changes:
            continue
        if not changes[function].lost_cast:
            continue
        node = expression(code, instruction)
        line = _line_of_operand(code, node)
        if line is not None:
            return function, line_in(code, line)
    return call.function, call.line


def _line_of_operand(code: CodeType, node: Expression | None) -> int | None:
    """Returns the last line that gives an expression an operand; None if not known."""
    if node is None:
        return None
    renamings = []
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            renamings += renamings_before(code, part.id, node.lineno)
    if renamings:
        return max(renamings)
    # A lambda is given its operands.
    if code.co_name == "<lambda>":
        return None
    return node.lineno
