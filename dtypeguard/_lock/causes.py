"""The lines of source behind the differences between a lock and a step."""

import ast
import collections
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType
from typing import NamedTuple

from .._source.origin import Origin
from .._source.syntax import expression, renamings_before
from .compare import ChangedRow, FunctionChange, LeavesOfRow
from .computations import (
    CAST,
    Computation,
    LockedFunction,
    line_in,
    line_of_call,
    locked_function,
)
from .step import TracedStep

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
    functions: Iterable[FunctionChange],
    inputs: LeavesOfRow,
    outputs: LeavesOfRow,
    step: TracedStep,
) -> list[LockCause]:
    """Finds the lines behind differences, but for functions that only moved."""
    changes = {change.function: change for change in functions}
    rows_of_line = collections.defaultdict(list)
    odd_values = set()
    for row, values in inputs.items():
        # A new input had no type that could change.
        if not row.locked:
            continue
        odd_values |= values
        # An input has no line of its own: it stands at the first that takes it.
        users = [call for call in step.computations if values & call.takes.keys()]
        for user in users[:1]:
            rows_of_line[user.line].append(row)
    lines_of_function = _blamed_lines(changes, odd_values, step)
    causes = []
    for function, lines in lines_of_function.items():
        cause = LockCause(list(lines), function, changes[function].rows)
        causes.append(cause)
    causes += [LockCause([line], None, rows) for line, rows in rows_of_line.items()]
    if not (causes or odd_values):
        # They only compute less, and what is gone has no line.
        for function, change in changes.items():
            if change.rows:
                causes.append(LockCause([], function, change.rows))
    rows = [*inputs, *outputs]
    # All functions compute as locked, so the step returns another of their values.
    if rows and not causes:
        file, _, name = step.lock.step.rpartition(":")
        causes = [LockCause([], (file, name), rows)]
    return causes


def _blamed_lines(
    changes: _Changes, odd_values: set[int], step: TracedStep
) -> dict[LockedFunction, dict[Origin, None]]:
    """Returns the lines that changed, by the function whose types they changed."""
    # A change of type goes on to all that is made of a value. So a cause is a call that
    # computes otherwise, and takes nothing that is made of another cause.
    blamed = collections.defaultdict(dict)
    # The calls are in the order of the program.
    for call in step.computations:
        if odd_values.isdisjoint(call.takes):
            if not any(
                text in changes[call.function].unseen[kind] for kind, text in call.entries
            ):
                continue
            # A backward pass follows from the forward one.
            if call.is_backward and blamed:
                continue
            for function, line in _places(call, changes, step.folder):
                blamed[function][line] = None
        odd_values = odd_values.union(call.gives)
    return blamed


def _places(
    call: Computation, changes: _Changes, folder: str
) -> list[tuple[LockedFunction, Origin]]:
    """Returns the lines of a call, or that from which a cast of an operand is gone."""
    candidates = [x for x in (*call.makers, call) if x.function in changes]
    places = []
    for candidate in candidates:
        change = changes[candidate.function]
        for kind, text in candidate.entries:
            if text not in change.added[kind]:
                continue
            # It takes what it took before: its operands are as they were.
            replaced = map(_operands, change.removed[kind])
            if kind == CAST or _operands(text) in replaced:
                places.append((candidate.function, candidate.line))
    if places:
        return places
    places = [(call.function, call.line)]
    # What made an operand stands where the cast was.
    for candidate in candidates:
        for code, instruction in candidate.chain:
            function = locked_function(code, folder)
            if function not in changes or not changes[function].removed[CAST]:
                continue
            renamings = _renamings(code, instruction)
            if renamings:
                return [(function, line_in(code, max(renamings)))]
            places = [(function, line_of_call(code, instruction))]
    return places


def _operands(text: str) -> str:
    """Returns the types of the operands of an entry."""
    operands, _, _ = text.partition(" -> ")
    return operands


def _renamings(code: CodeType, instruction: int) -> list[int]:
    """Returns the lines that may lack a cast of an operand of a call."""
    node = expression(code, instruction)
    lines = []
    if node is not None:
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                lines += renamings_before(code, part.id, node.lineno)
    return lines
