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

_Changes = dict[LockedFunction, FunctionChange]


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
    changes: _Changes = {}
    for change in functions:
        if change.added or change.removed:
            changes[change.function] = change
    # An input stands at the first line that takes it: it has no line of its own.
    inputs: dict[Origin, list[TypesChange]] = {}
    outputs: list[TypesChange] = []
    for change in leaves:
        values = {leaf.value for leaf in change.leaves}
        takers = [call for call in step.computations if values & call.takes.keys()]
        if change.table == INPUTS and change.before and takers:
            inputs.setdefault(takers[0].line, []).append(change)
        else:
            outputs.append(change)
    makers = {value: call for call in step.computations for value in call.gives}
    blamed = _blamed_lines(changes, inputs.values(), makers, step)
    if not blamed and not inputs:
        # They only compute less, and what is gone has no line: their last call is near.
        for call in step.computations:
            if call.function in changes:
                blamed[call.function] = [call.line]
    causes = [LockCause(lines, changes[function]) for function, lines in blamed.items()]
    causes += [LockCause([line], None, group) for line, group in inputs.items()]
    # All functions compute as locked, so the step returns another of their values.
    if outputs and not causes:
        values = [leaf.value for change in outputs for leaf in change.leaves[:1]]
        lines = [makers[value].line for value in values if value in makers]
        return LockCauses([LockCause(lines, None, outputs)], [], [])
    followers = [function for function in changes if function not in blamed]
    return LockCauses(causes, followers, outputs)


def _blamed_lines(
    changes: _Changes,
    inputs: Iterable[Sequence[TypesChange]],
    makers: dict[int, Computation],
    step: TracedStep,
) -> dict[LockedFunction, list[Origin]]:
    """Returns the lines that changed, by the function whose types they changed."""
    # A change of type goes on to all that is made of a value. So a cause is a call that
    # computes otherwise, and takes nothing that is made of another cause.
    odd_values: set[int] = set()
    for group in inputs:
        for change in group:
            odd_values.update(leaf.value for leaf in change.leaves)
    calls = sorted(step.computations, key=_order)
    replaces_another = _calls_to_blame(calls, changes)
    blamed: dict[LockedFunction, list[Origin]] = {}
    for call in calls:
        if odd_values.isdisjoint(call.takes):
            if call not in replaces_another:
                continue
            if call.is_backward and blamed:  # it follows from the forward pass
                break
            function = call.function
            line = call.line
            if not replaces_another[call]:
                function, line = _place_without_cast(call, makers, changes, step)
            lines = blamed.setdefault(function, [])
            if line not in lines:
                lines.append(line)
        odd_values.update(call.gives)
    return blamed


def _order(call: Computation) -> tuple[bool, int]:
    # Values are numbered in the order of the program.
    return call.is_backward, min(call.gives, default=0)


def _calls_to_blame(
    calls: Iterable[Computation], changes: _Changes
) -> dict[Computation, bool]:
    """Returns the calls that surely changed, and whether each replaces another one.

    No call of its function computed so before, or it makes an operand of such a one.
    """
    added_entries: dict[Computation, set[LockEntry]] = {}
    new_calls: set[Computation] = set()
    new_operands: set[int] = set()
    for call in calls:
        change = changes.get(call.function)
        if change is None:
            continue
        added_entries[call] = set(call.entries).intersection(change.added)
        if not added_entries[call].issubset(change.before):
            new_calls.add(call)
            new_operands.update(call.takes)
    sure: dict[Computation, bool] = {}
    for call, added in added_entries.items():
        replaces = _replaces_entry(added, changes[call.function])
        feeds_new_call = not new_operands.isdisjoint(call.gives)
        if call in new_calls or (feeds_new_call and replaces):
            sure[call] = replaces
    return sure


def _replaces_entry(added: Iterable[LockEntry], change: FunctionChange) -> bool:
    """Returns whether entries take what others of their function took before."""
    taken_before = {(entry.kind, entry.operands) for entry in change.removed}
    # A new cast stands in the place of what computed with such values before.
    for entry in change.before:
        if entry.kind != CAST:
            taken_before.add((CAST, entry.operands))
    return any((entry.kind, entry.operands) in taken_before for entry in added)


def _place_without_cast(
    call: Computation, makers: dict[int, Computation], changes: _Changes, step: TracedStep
) -> tuple[LockedFunction, Origin]:
    """Returns where the cast of an operand was: a renaming, a call, or its maker."""
    chains = [call.chain]
    # What made an operand stands where the cast was.
    chains += [makers[value].chain for value in call.takes if value in makers]
    for chain in chains:
        for code, instruction in chain:
            change = changes.get(step.function_of(code))
            node = expression(code, instruction)
            if change is None or node is None or not _lost_cast(change):
                continue
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
