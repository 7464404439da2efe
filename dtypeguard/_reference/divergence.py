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
        self._values_by_size: dict[int, list[_SketchedValue]] = {}
        self._count = 0

    def find(self, number: int, node: SketchNode) -> int | None:
        """Returns the group of a value; None without a sketch."""
        if not node.stack:  # an input, which is equal to the same argument
            return -1 - number
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
        self._count += 1
        values.append(_SketchedValue(norm, node.sketch, self._count))
        return self._count


# The groups of which a value is made, and its size.
_Look = tuple[frozenset[int], int]


class _ComparedProgram:
    """One of two programs.

    Attributes:
        nodes: its values.
        outputs: their numbers; None for a constant.
        groups: the group of each value; None if not known.
    """

    def __init__(self, call: RunCall, groups: _Groups):
        # In float32, rounding would make equal values differ by more than `_SAME_ERROR`.
        with set_x64(True):
            numeric = NumericProgram(call.program, IN_FLOAT64, call.traces, is_judged=True)
            self.nodes, self.outputs = sketches(numeric, call.arrays)
        self.groups = [groups.find(n, node) for n, node in enumerate(self.nodes)]

    def way_to(
        self, ends: Iterable[int | None], shared: Collection[int | None]
    ) -> list[int]:
        """Returns the values on the way to some ends, from the shared ones on, in order."""
        way: set[int] = set()
        waiting = list(ends)
        while waiting:
            number = waiting.pop()
            # A constant has no number.
            if number is None or number in way or self.groups[number] in shared:
                continue
            way.add(number)
            waiting += self.nodes[number].operands
        return sorted(way)

    def own_values(
        self, outputs: Iterable[int], shared: Collection[int | None]
    ) -> dict[_Look, list[int]]:
        """Returns values that only this program has, on the way to outputs, by look."""
        ends = [self.outputs[output] for output in outputs]
        made_of: dict[int, set[int]] = {}
        values: dict[_Look, list[int]] = {}
        # In the order of the program, operands come before what is made of them.
        for number in self.way_to(ends, shared):
            node = self.nodes[number]
            made_of[number] = set()
            for operand in node.operands:
                if operand is None:
                    continue
                group = self.groups[operand]
                if operand in made_of:
                    made_of[number] |= made_of[operand]
                elif group is not None:
                    made_of[number].add(group)
            if node.sketch is not None:
                look = (frozenset(made_of[number]), math.prod(node.shape))
                values.setdefault(look, []).append(number)
        return values

    def beginning(self, number: int, shared: Collection[int | None]) -> Origin | None:
        """Returns the first line on the way to a value that both programs do not have."""
        return self.line(self.way_to([number], shared) or [number])

    def line(self, numbers: Iterable[int]) -> Origin | None:
        """Returns the line of the first value with a line."""
        for number in numbers:
            stack = self.nodes[number].stack
            origin = Written(stack).origin if stack else None
            if origin is not None:
                return origin
        return None


def divergence(call: RunCall, reference: RunCall, outputs: Collection[int]) -> Divergence:
    """Returns the first lines whose results differ by more than rounding."""
    groups = _Groups()
    program = _ComparedProgram(call, groups)
    compared = _ComparedProgram(reference, groups)
    shared = set(program.groups) & set(compared.groups) - {None}
    own_values = program.own_values(outputs, shared)
    reference_values = compared.own_values(outputs, shared)
    pair = _corresponding(own_values, reference_values)
    # One returns what the other computes further with, such as a factor that a port lacks.
    if bool(own_values) != bool(reference_values):
        pair = _first_output(program, compared, outputs)
    if pair is None:
        equal = [n for n, group in enumerate(program.groups) if group in shared]
        return Divergence(program.line(reversed(equal)))
    first, second = pair
    sketch = np.asarray(program.nodes[first].sketch)
    off = sketch - np.asarray(compared.nodes[second].sketch)
    # Nothing is relative to zeros.
    apart = np.linalg.norm(off) / (np.linalg.norm(sketch) or 1.0)
    return Divergence(
        program.beginning(first, shared),
        compared.beginning(second, shared),
        float(apart),
    )


def _corresponding(
    values: dict[_Look, list[int]], reference_values: dict[_Look, list[int]]
) -> tuple[int, int] | None:
    """Returns values of two programs that are made of the same ones and are not equal.

    The first ones, and of several in a row the last.
    """
    for look, numbers in values.items():
        if look in reference_values:
            return numbers[-1], reference_values[look][-1]
    return None


def _first_output(
    program: _ComparedProgram, compared: _ComparedProgram, outputs: Iterable[int]
) -> tuple[int, int] | None:
    """Returns an output of two programs, as its values; None if none has sketches."""
    for output in outputs:
        first = program.outputs[output]
        second = compared.outputs[output]
        # Constants have no number, and inputs no sketch.
        if first is None or second is None:
            continue
        pair = program.nodes[first], compared.nodes[second]
        if all(node.sketch is not None for node in pair):
            return first, second
    return None
