"""Where two programs begin to differ by more than rounding.

Each value of the one has a sketch, and so has each of the other: values of the same size
with the same sketch are the same, whatever their shapes. From an output that differs, the
way leads back over what only one of them has, to the values that both have.
"""

import math
from collections.abc import Collection, Iterable

import numpy as np

from .._leaves.compat import set_x64
from .._numbers.program import NumericProgram
from .._numbers.sketches import SketchNode, sketches
from .._source.origin import Origin
from .._tracebacks.written import Written
from .difference import Divergence
from .judge import WIDE, RunCall

# Values in float64 that are nearer, relative to their norms, are the same: numbers of the
# source may have been rounded to float32.
_SAME_ERROR = 1e-6


class _Groups:
    """Groups of values that are the same but for rounding."""

    def __init__(self):
        self._inputs: dict[int, int] = {}
        self._known: dict[int, list[tuple[float, np.ndarray, int]]] = {}
        self._count = 0

    def of(self, number: int, node: SketchNode) -> int | None:
        """The group of a value; of an input, that of the same argument."""
        if not node.stack:
            return self._inputs.setdefault(number, self._next())
        if node.sketch is None:
            return None
        size = float(np.linalg.norm(node.sketch))
        others = self._known.setdefault(math.prod(node.shape), [])
        for other, sketch, group in others:
            bound = _SAME_ERROR * max(size, other)
            if abs(size - other) <= bound and np.linalg.norm(sketch - node.sketch) <= bound:
                return group
        others.append((size, node.sketch, self._next()))
        return self._count

    def _next(self) -> int:
        self._count += 1
        return self._count


class _ComparedProgram:
    """One of two programs.

    Attributes:
        nodes: its values.
        outputs: their numbers.
        groups: the number of the group of equal values of each; None if not known.
        own: what only it has on the way to some outputs, with the groups it is made of.
    """

    def __init__(self, call: RunCall, known: _Groups):
        with set_x64(True):
            program = NumericProgram(call.program, WIDE, call.traces, is_judged=True)
            self.nodes, self.outputs = sketches(program, call.arrays)
        self.groups = [known.of(n, node) for n, node in enumerate(self.nodes)]
        self.own = dict[int, frozenset[int]]()

    def leave(self, both: Collection[int], outputs: Collection[int]) -> None:
        """Finds what only it has on the way to some outputs, in order."""
        found = self._back([self.outputs[n] for n in outputs], both)
        for number in sorted(found):
            support = set[int]()
            for operand in self.nodes[number].operands:
                if operand in self.own:
                    support |= self.own[operand]
                elif operand is not None and (group := self.groups[operand]) is not None:
                    support.add(group)
            self.own[number] = frozenset(support)

    def _back(self, queue: list[int | None], both: Collection[int]) -> set[int]:
        """The values that lead to some, up to those that both programs have."""
        way = set[int]()
        while queue:
            number = queue.pop()
            if number is not None and number not in way and self.groups[number] not in both:
                way.add(number)
                queue += self.nodes[number].operands
        return way

    def looks(self, number: int) -> object:
        """What two values that correspond have in common: size, and what they are of."""
        node = self.nodes[number]
        # What has no sketch is not compared.
        known = node.sketch is not None
        return (self.own[number], math.prod(node.shape)) if known else object()

    def last(self, looks: object) -> int:
        """The last value that looks so."""
        return max(number for number in self.own if self.looks(number) == looks)

    def line(self, numbers: Iterable[int]) -> Origin | None:
        """The first line that makes one of some values."""
        lines = (
            Written(self.nodes[n].stack).origin for n in numbers if self.nodes[n].stack
        )
        return next((line for line in lines if line is not None), None)

    def begin(self, number: int, both: Collection[int]) -> Origin | None:
        """The first line on the way to a value that is not in the other program."""
        return self.line(sorted(self._back([number], both)) or [number])


def divergence(call: RunCall, reference: RunCall, outputs: Collection[int]) -> Divergence:
    """The first lines whose results differ by more than rounding."""
    known = _Groups()
    mine, other = (_ComparedProgram(each, known) for each in (call, reference))
    both = {x for x in {*mine.groups} & {*other.groups} if x is not None}
    for side in (mine, other):
        side.leave(both, outputs)
    twins = {other.looks(number) for number in other.own}
    looks = next((x for x in map(mine.looks, mine.own) if x in twins), None)
    ends = None if looks is None else (mine.last(looks), other.last(looks))
    if ends is None and bool(mine.own) != bool(other.own):  # one goes on, one returns
        pairs = ((mine.outputs[n], other.outputs[n]) for n in outputs)
        ends = next(((x, y) for x, y in pairs if x is not None and y is not None), None)
    if ends is None:
        equal = [n for n, group in enumerate(mine.groups) if group in both]
        return Divergence(mine.line(reversed(equal)))
    first, second = ends
    apart, x, y = math.nan, mine.nodes[first].sketch, other.nodes[second].sketch
    if x is not None and y is not None:
        apart = float(np.linalg.norm(x - y) / (np.linalg.norm(x) or 1.0))
    return Divergence(mine.begin(first, both), other.begin(second, both), apart)
