"""The lines of source behind the differences between a lock and a step."""

import ast
import collections
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType
from typing import NamedTuple

from .._source.origin import Origin
from .._source.syntax import expression, renamings_before
from .compare import ChangedRow, FunctionChange, LeavesChange
from .computations import CAST, OTHER, Computation, LockedFunction, line_in, locked_function
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
    changes = {change.function: change for change in functions if change.rows}
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
    causes += [LockCause([line], None, rows) for line, rows in rows_of_line.items()]
    # What only moved has no cause.
    if causes or not leaves:
        return causes
    # All functions compute as locked, so the step returns another of their values.
    file, _, name = step.lock.step.rpartition(":")
    rows = [change.row for change in leaves]
    return [LockCause([], (file, name), rows)]


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
    makers = set()
    for call in step.computations:
        if call.function not in changes:
            continue
        change = changes[call.function]
        for kind, text in call.entries:
            if text not in change.added[kind]:
                continue
            if text not in change.before[kind]:
                certain.add(call)
                makers.update(call.makers)
            # Arithmetic asks for no type: it follows from its operands.
            elif kind != OTHER:
                candidates.add(call)
    return certain | candidates & makers


def _place(
    call: Computation, changes: _Changes, step: TracedStep
) -> tuple[LockedFunction, Origin]:
    """Returns the line of a call, or that from which a cast of an operand is gone."""
    change = changes[call.function]
    for kind, text in call.entries:
        if text not in change.added[kind]:
            continue
        # It takes what it took before: its operands are as they were.
        replaced = map(_operands, change.removed[kind])
        if kind == CAST or _operands(text) in replaced:
            return call.function, call.line
    # What made an operand stands where the cast was.
    chain = list(call.chain)
    for maker in call.makers:
        chain += maker.chain[:1]
    for code, instruction in chain:
        function = locked_function(code, step.folder)
        if function not in changes:
            continue
        if not changes[function].removed[CAST]:
            continue
        line = _line_of_operand(code, instruction)
        if line is not None:
            return function, line_in(code, line)
    return call.function, call.line


def _operands(text: str) -> str:
    """Returns the types of the operands of an entry."""
    operands, _, _ = text.partition(" -> ")
    return operands


def _line_of_operand(code: CodeType, instruction: int) -> int | None:
    """Returns the last line that gives a call an operand; None if not known."""
    node = expression(code, instruction)
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
