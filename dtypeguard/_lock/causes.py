"""The lines of source behind the differences between a lock and a step."""

import ast
import collections
from types import CodeType

from .._source.origin import Origin
from .._source.syntax import expression, renamings_before
from .compare import FunctionChanges
from .computations import (
    CAST,
    Computation,
    LockedFunction,
    line_in,
    line_of_call,
    locked_function,
)
from .step import TracedStep


def blamed_lines(
    changes: FunctionChanges, odd_values: set[int], step: TracedStep
) -> dict[LockedFunction, dict[Origin, None]]:
    """Returns the lines that changed, by the function whose types they changed."""
    # A change of type goes on to all that is made of a value. So a cause is a call that
    # computes otherwise, and takes nothing that is made of another cause.
    blamed = collections.defaultdict(dict)
    casting_lines = set()
    for call in step.calls:
        if CAST in dict(call.entries):
            casting_lines.add(call.line)
    # The calls are in the order of the program.
    for call in step.calls:
        if odd_values.isdisjoint(call.takes):
            if not any(
                text in changes[call.function].unseen[kind] for kind, text in call.entries
            ):
                continue
            # A backward pass follows from the forward one.
            if call.is_backward and blamed:
                continue
            for function, line in _places(call, changes, casting_lines, step.folder):
                blamed[function][line] = None
        odd_values = odd_values.union(call.gives)
    return blamed


def _places(
    call: Computation,
    changes: FunctionChanges,
    casting_lines: set[Origin],
    folder: str,
) -> list[tuple[LockedFunction, Origin]]:
    """Returns the lines of a call, or that from which a cast of an operand is gone.

    Args:
        call: the call.
        changes: what changed in the functions.
        casting_lines: those of the calls that cast.
        folder: that of the lock.
    """
    calls = [call, *call.makers]
    candidates = [candidate for candidate in calls if candidate.function in changes]
    places = []
    for candidate in candidates:
        replacing = changes[candidate.function].replacing
        if any(text in replacing[kind] for kind, text in candidate.entries):
            places.append((candidate.function, candidate.line))
    if places:
        return places
    # What made an operand stands where the cast was.
    for candidate in candidates:
        for code, instruction in candidate.chain:
            if code.co_name == "<lambda>":  # it is given its operands
                continue
            function = locked_function(code, folder)
            if function not in changes or not changes[function].lost_cast:
                continue
            for number in sorted(_renamings(code, instruction), reverse=True):
                line = line_in(code, number)
                # A cast that ran is not the one that is gone.
                if line not in casting_lines:
                    return [(function, line)]
            places.append((function, line_of_call(code, instruction)))
    places.append((call.function, call.line))
    return places[:1]


def _renamings(code: CodeType, instruction: int) -> list[int]:
    """Returns the lines that may lack a cast of an operand of a call."""
    node = expression(code, instruction)
    lines = []
    if node is not None:
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                lines += renamings_before(code, part.id, node.lineno)
    return lines
