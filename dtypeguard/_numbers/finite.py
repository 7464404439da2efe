"""Where the values of a program stop being finite: from what a run notes of results."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .._leaves.types import Aval, Leaf
from .._program.graph import Stack
from . import plans
from .measure import Measures
from .nodes import Node
from .plans import WRITTEN, Propagation
from .primitives import is_inexact
from .program import NumericProgram
from .run import Counts, Probes

# Numbers of equations; those of inputs are below 0.
_Numbers = frozenset[int]


class Birth(NamedTuple):
    """What made a value that is not finite: the input of a number, or an equation."""

    number: int | None
    stack: Stack


class _Reaching(Propagation[_Numbers]):
    """Pushes through a program which births lead to a value through bad ones."""

    def __init__(
        self,
        program: NumericProgram,
        is_bad: Callable[[int, int], bool],
        is_born: Callable[[int, int], bool],
    ):
        super().__init__(program)
        self._is_bad, self._is_born = is_bad, is_born

    def constant(self, array: Leaf, aval: Aval) -> _Numbers:
        return frozenset()

    def computed(self, node: Node, values: list[_Numbers]) -> list[_Numbers]:
        before, number = self.joined(values, 0), node.number
        # What is selected away is followed no further.
        return [
            before | {number}
            if self._is_born(number, n)
            else before
            if self._is_bad(number, n)
            else frozenset()
            for n in range(len(node.eqn.outvars))
        ]

    opaque = computed

    def joined(self, values: Sequence[_Numbers], attempt: int) -> _Numbers:
        return frozenset().union(*values)

    def entry_of(self, value: _Numbers, aval: Aval) -> int:
        return WRITTEN


def not_finite(measures: Measures) -> tuple[list[Birth], list[Birth]]:
    """What makes outputs not finite, in the order of the program.

    It is an equation whose result is not finite, though its operands are, and which leads
    to such an output. What is infinite because an input or a constant is, such as a mask,
    counts as finite.

    Returns:
        What does as written and not in wide types, and what does in wide types.
    """
    program = measures.program
    written = _counts(measures, plans.written(program))
    wide = _counts(measures, plans.rounding(program, ()))
    stacks = {node.number: node.stack for node in program.block.all_nodes()}
    arrays = enumerate(measures.arrays)
    without = [n for n, x in arrays if is_inexact(x) and np.isnan(x).any()]
    floats = [n for n, aval in enumerate(program.jaxpr.out_avals) if is_inexact(aval)]

    def births(is_bad: Callable, is_born: Callable, inputs: Sequence[int]) -> list[Birth]:
        count = range(len(program.jaxpr.in_avals))
        given = [frozenset({-1 - n} if n in inputs else ()) for n in count]
        outputs = _Reaching(program, is_bad, is_born).block(program.block, given)
        numbers = sorted(frozenset().union(*(outputs[n] for n in floats)))
        of = lambda n: Birth(-1 - n, ()) if n < 0 else Birth(None, stacks[n])
        return [*map(of, numbers)]

    is_lost = lambda *key: written.get(key, _NONE)[0] > wide.get(key, _NONE)[0]
    is_bad = lambda *key: wide.get(key, _NONE)[0] > 0
    born_as_written = lambda *key: is_lost(*key) and written[key][1] > 0
    born_wide = lambda *key: wide.get(key, _NONE)[1] > 0
    # What an infinite input, rounded or not, leads to is born of nothing.
    lost = births(is_lost, born_as_written, ()) or births(is_lost, is_lost, ())[:1]
    return lost, births(is_bad, born_wide, without)


_NONE = np.zeros(2, int)


def _counts(measures: Measures, plan: plans.WidthPlan) -> dict[tuple[int, int], np.ndarray]:
    """How many elements of each value are not finite, and how often that is new."""
    counts: Counts = {}
    measures.run(plan, Probes(given=measures.given, finite=counts))
    return {key: np.asarray(x).reshape(-1, 2).sum(0) for key, x in counts.items()}
