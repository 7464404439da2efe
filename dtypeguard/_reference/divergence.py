"""Where two programs begin to differ by more than rounding.

Each value has a sketch: values of the same size
with the same sketch are the same, whatever their shapes. From an output that differs, the
way leads back over what only one of them has, to the values that both have.
"""

import collections

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


class _ComparedProgram:
    """One of two programs, with its values in the order of the program."""

    def __init__(self, judge: Judge):
        # In float32, rounding would make equal values differ by more than `_SAME_ERROR`.
        with set_x64(True):
            numeric = judge.numeric(IN_FLOAT64)
            self._nodes, self._outputs = sketches(numeric, judge.arrays)
        self._sketches_by_size = collections.defaultdict(list)
        for node in self._nodes:
            if node.sketch is not None:
                same_size = self._sketches_by_size[node.size]
                same_size.append(node.sketch)

    def has(self, node: SketchNode) -> bool:
        """Returns whether it computes a value of another program, but for rounding."""
        if not node.stack:
            # Both have the inputs. What leaves a call is what was made inside.
            return not node.operands
        if node.sketch is None:
            return False
        same_size = self._sketches_by_size[node.size]
        # All at once: a program has thousands of values of a size, or none.
        rows = np.reshape(same_size, (-1, node.sketch.size))
        off = rows - node.sketch
        distances = np.linalg.norm(off, axis=1)
        norm = np.linalg.norm(node.sketch)
        are_same = distances <= _SAME_ERROR * norm
        return bool(are_same.any())

    def beginning(self, n: int, compared: "_ComparedProgram") -> Origin | None:
        """Returns the first line on the way to an output whose value another program lacks.

        Where that computes further with the output itself, it is the line of the output.
        """
        first_line = None
        wanted = {self._outputs[n]}
        # Operands come before what is made of them.
        for number in reversed(range(len(self._nodes))):
            if number not in wanted:
                continue
            node = self._nodes[number]
            is_shared = compared.has(node)
            if not is_shared:
                wanted.update(node.operands)
            line = Written(node.stack).origin
            if line is not None and not (is_shared and first_line):
                first_line = line
        return first_line


def divergence(judge: Judge, reference: Judge, n: int, apart: float) -> Divergence:
    """Returns the first lines of two functions behind an output that is so far apart."""
    program = _ComparedProgram(judge)
    compared = _ComparedProgram(reference)
    line = program.beginning(n, compared)
    reference_line = compared.beginning(n, program)
    return Divergence(line, reference_line, apart)
