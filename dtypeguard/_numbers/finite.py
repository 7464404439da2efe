"""Where the values of a program stop being finite: from counts of results."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._leaves.types import Aval, Leaf
from .._program.graph import Stack
from . import plans
from .measure import Measures
from .nodes import Block, Node
from .primitives import is_inexact
from .program import NumericProgram
from .propagate import WRITTEN, Propagation
from .run import Counts, Probes

# A value: by the number of the equation and the place of the result, as counts are noted.
_Key = tuple[int, int]
_INPUT, _CONSTANT = -1, -2  # in place of a number


class Birth(NamedTuple):
    """What made a value that may not be finite.

    Attributes:
        number: of the input, if it is one.
        stack: the equation and those around it, inside out; empty for an input.
    """

    number: int | None
    stack: Stack


class _Known(NamedTuple):
    """What is known of a value.

    Attributes:
        key: the value.
        birth: the first bad one that leads to it through bad ones, and is new.
        in_loop: the first bad one of a `while` loop that is given none. Of a loop of many
            turns the counts do not tell in which one a value is bad.
    """

    key: _Key
    birth: _Key | None = None
    in_loop: _Key | None = None


class _Births(Propagation[_Known]):
    """Pushes through a program which value was the first bad one.

    Args:
        program: the program.
        counts: how many numbers are not finite, and how many are none, by value.
        is_bad: whether a value is bad.
        is_new: whether a bad one is so though those that it is made of are not.
    """

    def __init__(
        self,
        program: NumericProgram,
        counts: "_Counts",
        is_bad: Callable[[_Key], bool],
        is_new: Callable[[_Key, Sequence[_Key]], bool],
    ):
        super().__init__(program)
        self._counts, self._is_bad, self._is_new = counts, is_bad, is_new
        self._constants = 0
        # Whether the outermost `while` loop around is given no bad value; None outside.
        self._is_clean: bool | None = None

    def outputs(self) -> list[_Known]:
        count = range(len(self.program.jaxpr.in_avals))
        given = [self._found((_INPUT, n), ()) for n in count]
        return self.block(self.program.block, given)

    def constant(self, array: Leaf, aval: Aval) -> _Known:
        key, self._constants = (_CONSTANT, self._constants), self._constants + 1
        self._counts[key] = _counted(array)
        return _Known(key)

    def node(self, node: Node, values: list[_Known]) -> Sequence[_Known]:
        before = self._is_clean
        if node.rule == "while" and before is None:
            self._is_clean = not any(self._is_bad(value.key) for value in values)
        made = super().node(node, values)
        self._is_clean = before
        if node.rule == "call":
            return made
        return [x._replace(key=(node.number, n)) for n, x in enumerate(made)]

    def computed(self, node: Node, values: list[_Known]) -> list[_Known]:
        places = range(len(node.eqn.outvars))
        return [self._found((node.number, n), values) for n in places]

    opaque = computed

    def inside(self, block: Block, given: Sequence[_Known]) -> list[_Known]:
        # What enters it is counted by its number.
        entered = [x._replace(key=(block.number, n)) for n, x in enumerate(given)]
        return super().inside(block, entered)

    def joined(self, values: Sequence[_Known], attempt: int) -> _Known:
        return _Known(values[0].key, *_earliest(values))

    def entry_of(self, value: _Known, aval: Aval) -> int:
        return WRITTEN

    def _found(self, key: _Key, values: Sequence[_Known]) -> _Known:
        # What is selected away is followed no further than the counts say.
        if not self._is_bad(key):
            return _Known(key)
        birth, in_loop = _earliest(values)
        if birth is None and self._is_new(key, [value.key for value in values]):
            birth = key
        if in_loop is None and self._is_clean:
            in_loop = key
        return _Known(key, birth, in_loop)


def _earliest(values: Sequence[_Known]) -> tuple[_Key | None, _Key | None]:
    least = lambda keys: min((key for key in keys if key is not None), default=None)
    return least(x.birth for x in values), least(x.in_loop for x in values)


def not_finite(measures: Measures) -> tuple[list[Birth], list[Birth]]:
    """What makes outputs not finite, in the order of the program.

    It is the first equation whose result is not finite, though its operands are, among
    those that lead to such an output. What is infinite because an input or a constant is,
    such as a mask, counts as finite.

    Returns:
        What does as written and not in wide types, and what does in wide types.
    """
    program = measures.program
    written = _counts(measures, plans.written(program))
    wide = _counts(measures, plans.rounding(program, ()))
    for number, array in enumerate(measures.arrays):
        written[_INPUT, number] = wide[_INPUT, number] = _counted(array)
    of = lambda counts, key: counts.get(key, _NONE)[..., 0]
    is_lost = lambda key: bool(
        key[0] != _CONSTANT and np.any(of(written, key) > of(wide, key))
    )
    is_bad = lambda key: bool(np.any(of(wide, key)))
    is_new = lambda key, operands: _is_new(key, operands, wide)
    floats = [n for n, aval in enumerate(program.jaxpr.out_avals) if is_inexact(aval)]
    stacks = {node.number: node.stack for node in program.block.all_nodes()}

    def births(rules: _Births) -> list[Birth]:
        outputs = rules.outputs()
        found = (outputs[n].birth or outputs[n].in_loop for n in floats)
        keys = sorted({key for key in found if key is not None})
        of_input = lambda key: Birth(key[1], ()) if key[0] == _INPUT else None
        return [of_input(key) or Birth(None, stacks[key[0]]) for key in keys]

    lost = _Births(program, written, is_lost, lambda *_: True)
    return births(lost), births(_Births(program, wide, is_bad, is_new))


_Counts = dict[_Key, np.ndarray]
_NONE = np.zeros(2, int)


def _counts(measures: Measures, plan: plans.WidthPlan) -> _Counts:
    """How many elements of each value are not finite, and how many are not a number."""
    counts: Counts = {}
    measures.run(plan, Probes(given=measures.given, finite=counts))
    return {value: np.asarray(x) for value, x in counts.items()}


def _counted(array: Any) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.kind in "biuOSU" or not is_inexact(array):
        return _NONE
    return np.array([np.sum(~np.isfinite(array)), np.sum(np.isnan(array))])


def _is_new(key: _Key, operands: Sequence[_Key], counts: _Counts) -> bool:
    """Whether a value is not finite, or not a number, and what it is made of is not so."""
    mine = counts.get(key, _NONE)
    if key[0] == _INPUT:
        return bool(mine[..., 1])
    before = [counts.get(x, _NONE) for x in operands]
    # Of a loop, in one of its turns.
    bad, nan = (
        np.any([_turns(x[..., n], mine[..., n]) > 0 for x in before], axis=0)
        if before
        else np.zeros(mine[..., n].shape, bool)
        for n in (0, 1)
    )
    return bool(np.any((mine[..., 0] > 0) & ~bad) or np.any((mine[..., 1] > 0) & ~nan))


def _turns(counts: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The counts of an operand in the turns of a value; of all turns if these differ."""
    if counts.shape == like.shape:
        return counts
    extra = counts.ndim - like.ndim
    if extra >= 0:
        return np.broadcast_to(np.sum(counts), like.shape)
    return np.broadcast_to(counts.reshape(counts.shape + (1,) * -extra), like.shape)
