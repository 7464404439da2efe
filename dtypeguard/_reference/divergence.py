"""Where two programs begin to differ by more than rounding.

Each value of the one has a sketch, and so has each of the other: values of the same size
with the same sketch are the same, whatever their shapes. From an output that differs, the
way leads back over what only one of them has, to the values that both have.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from .._lines.equations import Written
from .._numbers.sketches import SketchNode
from .._source.origin import Origin
from .difference import Divergence
from .runs import RunCall, sketched

# Values in float64 that are nearer, relative to their norms, are the same: numbers of the
# source may have been rounded to float32.
_SAME = 1e-6


class _Program(NamedTuple):
    """The values of a program, with what they are the same as.

    Attributes:
        nodes: the values.
        outputs: their numbers.
        groups: the number of the group of equal values of each; None if not known.
    """

    nodes: list[SketchNode]
    outputs: list[int | None]
    groups: list[int | None]


def divergence(call: RunCall, reference: RunCall, outputs: Collection[int]) -> Divergence:
    """The first lines whose results differ by more than rounding."""
    known = _Groups()
    calls = [each.in_float32 or each for each in (call, reference)]
    mine, other = (known.program(*sketched(each)) for each in calls)
    both = {x for x in {*mine.groups} & {*other.groups} if x is not None}
    a, b = (_region(each, both, outputs) for each in (mine, other))
    for number in a:
        for twin in b:
            if _looks(number, a, mine) == _looks(twin, b, other):
                looks = _looks(number, a, mine)
                last = max(n for n in a if _looks(n, a, mine) == looks)
                twin = max(n for n in b if _looks(n, b, other) == looks)
                return _found(last, a, mine, twin, b, other)
    if bool(a) != bool(b):  # one goes on where the other returns
        ends = ((mine.outputs[n], other.outputs[n]) for n in outputs)
        for last, twin in ends:
            if last is not None and twin is not None:
                return _found(last, a, mine, twin, b, other)
    equal = [n for n, group in enumerate(mine.groups) if group in both]
    stacks = (mine.nodes[n].stack for n in reversed(equal))
    lines = (Written(stack).origin for stack in stacks if stack)
    return Divergence(next((x for x in lines if x), None))


class _Groups:
    """Groups of values that are the same but for rounding."""

    def __init__(self):
        self._inputs: dict[int, int] = {}
        self._known: dict[int, list[tuple[float, np.ndarray, int]]] = {}
        self._count = 0

    def program(self, nodes: list[SketchNode], outputs: list[int | None]) -> _Program:
        """A program with the groups of its values."""
        return _Program(nodes, outputs, [self._of(n, node) for n, node in enumerate(nodes)])

    def _of(self, number: int, node: SketchNode) -> int | None:
        """The group of a value; of an input, that of the same argument."""
        if not node.stack:
            return self._inputs.setdefault(number, self._next())
        if node.sketch is None:
            return None
        size = float(np.linalg.norm(node.sketch))
        others = self._known.setdefault(math.prod(node.shape), [])
        for other, sketch, group in others:
            bound = _SAME * max(size, other)
            if abs(size - other) <= bound and np.linalg.norm(sketch - node.sketch) <= bound:
                return group
        others.append((size, node.sketch, self._next()))
        return self._count

    def _next(self) -> int:
        self._count += 1
        return self._count


# Numbers of values that only one program has, with the groups that they are made of.
_Region = dict[int, frozenset[int]]


def _region(program: _Program, both: Collection[int], outputs: Collection[int]) -> _Region:
    """What only one program has on the way to some outputs, in order."""
    own, queue = set[int](), [program.outputs[n] for n in outputs]
    while queue:
        number = queue.pop()
        if number is None or number in own or program.groups[number] in both:
            continue
        own.add(number)
        queue += program.nodes[number].operands
    made = _Region()
    for number in sorted(own):
        support = set[int]()
        for operand in program.nodes[number].operands:
            if operand in made:
                support |= made[operand]
            elif operand is not None and (group := program.groups[operand]) is not None:
                support.add(group)
        made[number] = frozenset(support)
    return made


def _looks(number: int, region: _Region, program: _Program) -> object:
    """What two values have in common that correspond: sizes, and what they are made of."""
    node = program.nodes[number]
    # What has no sketch is not compared.
    return (region[number], math.prod(node.shape)) if node.sketch is not None else object()


def _found(
    last: int, a: _Region, mine: _Program, twin: int, b: _Region, other: _Program
) -> Divergence:
    """The lines at which two regions begin, and how far what comes out is apart."""
    x, y = mine.nodes[last].sketch, other.nodes[twin].sketch
    apart = math.nan
    if x is not None and y is not None:
        apart = float(np.linalg.norm(x - y) / (np.linalg.norm(x) or 1.0))
    return Divergence(_begin(last, a, mine), _begin(twin, b, other), apart)


def _begin(number: int, region: _Region, program: _Program) -> Origin | None:
    """The first line on the way to a value that is not in the other program."""
    way, queue = set[int](), [number]
    while queue:
        each = queue.pop()
        if each in region and each not in way:
            way.add(each)
            queue += [x for x in program.nodes[each].operands if x is not None]
    lines = (Written(program.nodes[each].stack).origin for each in sorted(way) or [number])
    return next((line for line in lines if line is not None), None)
