"""Where two programs begin to differ by more than rounding.

Each value has a sketch: values of the same size
with the same sketch are the same, whatever their shapes. From an output that differs, the
way leads back over what only one of them has, to the values that both have.
"""

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from .._leaves.compat import set_x64
from .._numbers.program import NumericProgram
from .._numbers.sketches import SketchNode, sketches
from .._source.origin import Origin
from .._tracebacks.written import Written
from .difference import Divergence
from .judge import IN_FLOAT64, RunCall

# Values in float64 that are nearer, relative to their norms, are the same: numbers of the
# source may have been rounded to float32.
_SAME_ERROR = 1e-6


class _SketchedValue(NamedTuple):
    norm: float
    sketch: np.ndarray
    group: int


class _Groups:
    """Groups of values that are equal but for rounding."""

    def __init__(self):
        self._group_of_input: dict[int, int] = {}
        self._values_by_size: dict[int, list[_SketchedValue]] = {}
        self._count = 0

    def find(self, number: int, node: SketchNode) -> int | None:
        """Returns the group of a value; None without a sketch."""
        if not node.stack:  # an input, which is equal to the same argument
            return self._group_of_input.setdefault(number, self._next())
        if node.sketch is None:
            return None
        norm = float(np.linalg.norm(node.sketch))
        # By size and not by shape: one program may reshape what the other one does not.
        values = self._values_by_size.setdefault(math.prod(node.shape), [])
        for value in values:
            bound = _SAME_ERROR * max(norm, value.norm)
            # The norms alone tell most values apart.
            if abs(norm - value.norm) > bound:
                continue
            if np.linalg.norm(value.sketch - node.sketch) <= bound:
                return value.group
        values.append(_SketchedValue(norm, node.sketch, self._next()))
        return self._count

    def _next(self) -> int:
        self._count += 1
        return self._count


# The size of a value, and the groups of which it is made.
_Look = tuple[frozenset[int], int]


class _ComparedProgram:
    """One of two programs.

    Attributes:
        nodes: its values.
        outputs: their numbers.
        groups: the group of each value; None if not known.
        own: the values that it alone has on the way to some outputs, in order, each with
            the groups of which it is made.
    """

    def __init__(self, call: RunCall, groups: _Groups):
        # In float32, rounding would make equal values differ by more than `_SAME_ERROR`.
        with set_x64(True):
            numeric = NumericProgram(call.program, IN_FLOAT64, call.traces, is_judged=True)
            self.nodes, self.outputs = sketches(numeric, call.arrays)
        self.groups = [groups.find(n, node) for n, node in enumerate(self.nodes)]
        self.own: dict[int, frozenset[int]] = {}

    def find_own(self, shared: Collection[int], outputs: Collection[int]) -> None:
        """Finds the values on the way to some outputs that only this program has."""
        ends = [self.outputs[output] for output in outputs]
        # In the order of the program, operands come before what is made of them.
        for number in sorted(self._way_to(ends, shared)):
            support: set[int] = set()
            for operand in self.nodes[number].operands:
                if operand is None:
                    continue
                group = self.groups[operand]
                if operand in self.own:
                    support |= self.own[operand]
                elif group is not None:
                    support.add(group)
            self.own[number] = frozenset(support)

    def _way_to(self, ends: Iterable[int | None], shared: Collection[int]) -> set[int]:
        """Returns the values on the way to some ends, from the shared ones on."""
        way: set[int] = set()
        waiting = list(ends)
        while waiting:
            number = waiting.pop()
            if number is None or number in way or self.groups[number] in shared:
                continue
            way.add(number)
            waiting += self.nodes[number].operands
        return way

    def look(self, number: int) -> _Look | None:
        """Returns what values that correspond have in common; None without a sketch."""
        node = self.nodes[number]
        if node.sketch is None:
            return None
        return self.own[number], math.prod(node.shape)

    def last(self, look: _Look) -> int:
        """Returns the last value that looks so."""
        return max(number for number in self.own if self.look(number) == look)

    def line(self, numbers: Iterable[int]) -> Origin | None:
        """Returns the line of the first value with a line."""
        for number in numbers:
            stack = self.nodes[number].stack
            origin = Written(stack).origin if stack else None
            if origin is not None:
                return origin
        return None

    def beginning(self, number: int, shared: Collection[int]) -> Origin | None:
        """Returns the first line on the way to a value that both programs do not have."""
        return self.line(sorted(self._way_to([number], shared)) or [number])


def divergence(call: RunCall, reference: RunCall, outputs: Collection[int]) -> Divergence:
    """Returns the first lines whose results differ by more than rounding."""
    groups = _Groups()
    program = _ComparedProgram(call, groups)
    compared = _ComparedProgram(reference, groups)
    groups_of_both = set(program.groups) & set(compared.groups)
    shared = {group for group in groups_of_both if group is not None}
    program.find_own(shared, outputs)
    compared.find_own(shared, outputs)
    ends = _corresponding(program, compared, outputs)
    if ends is None:
        equal = [n for n, group in enumerate(program.groups) if group in shared]
        return Divergence(program.line(reversed(equal)))
    first, second = ends
    apart = math.nan
    sketch = program.nodes[first].sketch
    reference_sketch = compared.nodes[second].sketch
    if sketch is not None and reference_sketch is not None:
        # Nothing is relative to zeros.
        norm = np.linalg.norm(sketch) or 1.0
        apart = float(np.linalg.norm(sketch - reference_sketch) / norm)
    return Divergence(
        program.beginning(first, shared), compared.beginning(second, shared), apart
    )


def _corresponding(
    program: _ComparedProgram, compared: _ComparedProgram, outputs: Collection[int]
) -> tuple[int, int] | None:
    """Returns the first values of two programs that correspond and are not equal."""
    looks = {compared.look(number) for number in compared.own}
    for number in program.own:
        look = program.look(number)
        if look is not None and look in looks:
            return program.last(look), compared.last(look)
    if bool(program.own) == bool(compared.own):
        return None
    for output in outputs:  # one goes on where the reference returns
        first = program.outputs[output]
        second = compared.outputs[output]
        if first is not None and second is not None:
            return first, second
    return None
