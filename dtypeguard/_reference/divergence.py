"""Where two programs begin to differ by more than rounding.

Each value has a sketch: values of the same size
with the same sketch are the same, whatever their shapes. From an output that differs, the
way leads back over what only one of them has, to the values that both have.
"""

import collections
import itertools
from collections.abc import Collection, Iterable

import numpy as np

from .._leaves.compat import set_x64
from .._numbers.sketches import SketchNode, sketches
from .._source.origin import Origin
from .._tracebacks.written import Written
from .difference import Divergence
from .judge import IN_FLOAT64, Judge

# Values in float64 that are nearer, relative to their norms, are the same: numbers of the
# source may have been rounded to float32.
_SAME_ERROR = 1e-6


class _Groups:
    """Groups of values that are equal but for rounding."""

    def __init__(self):
        self._sketches_by_size = collections.defaultdict(dict)
        self._numbers = itertools.count()

    def find(self, number: int, node: SketchNode) -> int:
        """Returns the group of a value; without a sketch it has one of its own."""
        if not node.stack:  # an input, which is equal to the same argument
            return -1 - number
        new_group = next(self._numbers)
        if node.sketch is None:
            return new_group
        sketches = self._sketches_by_size[node.size]
        norm = np.linalg.norm(node.sketch)
        bound = _SAME_ERROR * norm
        for group, sketch in sketches.items():
            distance = np.linalg.norm(sketch - node.sketch)
            if distance <= bound:
                return group
        sketches[new_group] = node.sketch
        return new_group


# The groups of which a value is made, and its size.
_Look = tuple[frozenset[int], int]


class _ComparedProgram:
    """One of two programs.

    Attributes:
        nodes: its values.
        outputs: their numbers.
        groups: the group of each value.
        shared: the groups that both programs have.
    """

    def __init__(self, judge: Judge, groups: _Groups):
        # In float32, rounding would make equal values differ by more than `_SAME_ERROR`.
        with set_x64(True):
            numeric = judge.numeric(IN_FLOAT64)
            self.nodes, self.outputs = sketches(numeric, judge.arrays)
        self.groups = []
        for number, node in enumerate(self.nodes):
            group = groups.find(number, node)
            self.groups.append(group)
        self.shared: Collection[int] = ()

    def way_to(self, ends: Iterable[int]) -> list[int]:
        """Returns the values on the way to some ends, from the shared ones on, in order."""
        wanted = set(ends)
        way = []
        # Operands come before what is made of them; a constant has no number.
        for number in reversed(range(len(self.nodes))):
            if number not in wanted:
                continue
            if self.groups[number] in self.shared:
                continue
            way.append(number)
            node = self.nodes[number]
            wanted.update(node.operands)
        return way[::-1]

    def own_values(self, outputs: Iterable[int]) -> dict[_Look, int]:
        """Returns values that only this program has, on the way to outputs, by look.

        Of several in a row the last.
        """
        made_of = {}
        values = {}
        # In the order of the program, operands come before what is made of them.
        for number in self.way_to(self.outputs[output] for output in outputs):
            node = self.nodes[number]
            sources = set()
            for operand in node.operands:
                if operand in made_of:
                    sources |= made_of[operand]
                # A value of both programs is its own source.
                else:
                    sources.add(self.groups[operand])
            made_of[number] = frozenset(sources)
            if node.sketch is not None:
                values[made_of[number], node.size] = number
        return values

    def beginning(self, number: int) -> Origin | None:
        """Returns the first line on the way to a value that both programs do not have."""
        way = self.way_to([number])
        if not way:
            way = [number]
        return self.line(way)

    def line(self, numbers: Iterable[int]) -> Origin | None:
        """Returns the line of the first value with a line."""
        for number in numbers:
            # An input has no equation.
            node = self.nodes[number]
            origin = Written(node.stack).origin
            if origin is not None:
                return origin
        return None


def divergence(judge: Judge, reference: Judge, outputs: Collection[int]) -> Divergence:
    """Returns the first lines whose results differ by more than rounding."""
    groups = _Groups()
    program = _ComparedProgram(judge, groups)
    compared = _ComparedProgram(reference, groups)
    shared = set(program.groups).intersection(compared.groups)
    program.shared = shared
    compared.shared = shared
    values = program.own_values(outputs)
    reference_values = compared.own_values(outputs)
    # Those correspond that are made of the same ones and are not equal.
    pairs = []
    for look, number in values.items():
        if look in reference_values:
            pair = (number, reference_values[look])
            pairs.append(pair)
    # One returns what the other computes further with, such as a factor that a port lacks.
    if bool(values) != bool(reference_values):
        for n in outputs:
            pair = (program.outputs[n], compared.outputs[n])
            pairs.append(pair)
    for first, second in pairs:
        sketch = program.nodes[first].sketch
        reference_sketch = compared.nodes[second].sketch
        # Inputs and constants have no sketch.
        if sketch is None:
            continue
        if reference_sketch is None:
            continue
        distance = np.linalg.norm(sketch - reference_sketch)
        norm = np.linalg.norm(sketch)
        # Nothing is relative to zeros.
        if not norm:
            norm = 1.0
        apart = float(distance / norm)
        line = program.beginning(first)
        reference_line = compared.beginning(second)
        return Divergence(line, reference_line, apart)
    equal = []
    for number, group in enumerate(program.groups):
        if group in shared:
            equal.append(number)
    last_line = program.line(reversed(equal))
    return Divergence(last_line)
