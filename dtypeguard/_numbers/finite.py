"""Where the values of a program stop being finite: from counts of results."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._program.graph import Stack, loop_parts
from . import plans
from .measure import Measures
from .nodes import Block, Node
from .primitives import is_inexact
from .program import NumericProgram
from .propagate import solved
from .run import Counts, Probes

# A value: a result of an equation, an input of a block, or a constant.
_Value = tuple[object, int]


class Birth(NamedTuple):
    """What made a value that may not be finite.

    Attributes:
        number: of the input, if it is one.
        stack: the equation and those around it, inside out; empty for an input.
    """

    number: int | None
    stack: Stack


class _Graph:
    """The values of a program, and of which others each is made.

    Attributes:
        sources: the values that one is made of.
        joins: those that are one of their sources: what a loop carries, what branches
            return.
        births: the equation or the input that makes one, in the order of the program.
        loops: of what a `while` loop makes, the values that the loop is given.
        constants: the arrays that the program holds.
        outputs: what it returns.
    """

    def __init__(self, program: NumericProgram):
        self.sources: dict[_Value, list[_Value]] = {}
        self.joins = set[_Value]()
        self.births: dict[_Value, Birth] = {}
        self.loops: dict[_Value, list[_Value]] = {}
        self.constants: dict[_Value, Any] = {}
        block = program.block
        given: list[_Value] = [("input", n) for n in range(len(program.jaxpr.in_avals))]
        for number, value in enumerate(given):
            self.sources[value] = []
            self.births[value] = Birth(number, ())
        self.outputs = self._enter(block, given)

    def _constant(self, array: Any) -> _Value:
        value = "constant", len(self.constants)
        self.constants[value] = array
        return value

    def _join(self, value: _Value, *sources: _Value) -> _Value:
        self.joins.add(value)
        self.sources.setdefault(value, []).extend(sources)
        return value

    def _enter(self, block: Block, given: Sequence[_Value]) -> list[_Value]:
        consts = [self._constant(x) for x in block.consts]
        known = dict(zip(block.inputs, [*consts, *given]))
        read = lambda v: self._constant(v.val) if hasattr(v, "val") else known[v]
        for node in block.nodes:
            operands = [read(v) for v in node.eqn.invars]
            known |= zip(node.eqn.outvars, self._made(node, operands))
        return [read(v) for v in block.outputs]

    def _made(self, node: Node, operands: list[_Value]) -> Sequence[_Value]:
        made: list[_Value] = [(node.number, n) for n in range(len(node.eqn.outvars))]
        if node.rule == "call":
            return self._enter(node.inner[0], operands)
        if node.rule == "custom_linear_solve":
            return self._enter(node.inner[0], solved(node, operands))
        if node.rule == "cond":
            for block in node.inner:
                for value, inner in zip(made, self._enter(block, operands[1:])):
                    self._join(value, inner)
            return made
        if node.rule == "shard_map":
            inner = self._enter(node.inner[0], operands)
            return [self._join(*pair) for pair in zip(made, inner)]
        if node.rule in ("scan", "while"):
            return self._looped(node, operands, made)
        for value in made:
            # What is selected away is followed no further than the counts say.
            self.sources[value] = operands
            self.births[value] = Birth(None, node.stack)
        return made

    def _looped(
        self, node: Node, operands: list[_Value], made: list[_Value]
    ) -> list[_Value]:
        _, before, consts, count = loop_parts(node.eqn)
        outside, given = operands[before : before + consts], operands[before + consts :]
        body = node.inner[0]
        entered = [self._join((body.number, n), value) for n, value in enumerate(given)]
        known = len(self.births)
        inner = self._enter(body, [*outside, *entered])
        if node.rule == "while":
            self.loops |= dict.fromkeys([*self.births][known:], operands)
        for value, come_round in zip(entered[:count], inner):
            self._join(value, come_round)
        last = [*entered[:count], *inner[count:]]
        return [self._join(*pair) for pair in zip(made, last)]


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
    graph = _Graph(program)
    for value, array in graph.constants.items():
        written[value] = wide[value] = _counted(array)
    for number, array in enumerate(measures.arrays):
        written["input", number] = wide["input", number] = _counted(array)
    is_lost = lambda v: bool(
        np.any(written.get(v, _NONE)[..., 0] > wide.get(v, _NONE)[..., 0])
    )
    is_bad = lambda v: bool(np.any(wide.get(v, _NONE)[..., 0]))
    pairs = zip(graph.outputs, program.jaxpr.out_avals)
    outputs = [value for value, aval in pairs if is_inexact(aval)]
    lost = [_first(graph, x, is_lost, lambda _: True) for x in outputs]
    bad = [_first(graph, x, is_bad, lambda v: _is_new(graph, v, wide)) for x in outputs]
    order = {value: n for n, value in enumerate(graph.births)}
    births = lambda found: [
        graph.births[x] for x in sorted({*filter(None, found)}, key=lambda x: order[x])
    ]
    return births(lost), births(bad)


_NONE = np.zeros(2, int)


def _counts(measures: Measures, plan: plans.WidthPlan) -> dict[_Value, np.ndarray]:
    """How many elements of each value are not finite, and how many are not a number."""
    counts: Counts = {}
    measures.run(plan, Probes(given=measures.given, finite=counts))
    return {value: np.asarray(x) for value, x in counts.items()}


def _counted(array: Any) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.kind in "biuOSU" or not is_inexact(array):
        return _NONE
    return np.array([np.sum(~np.isfinite(array)), np.sum(np.isnan(array))])


def _is_new(graph: _Graph, value: _Value, counts: dict[_Value, np.ndarray]) -> bool:
    """Whether a value is not finite, or not a number, and what it is made of is not so."""
    mine = counts.get(value, _NONE)
    operands = [counts.get(x, _NONE) for x in graph.sources[value]]
    if value[0] == "input":
        return bool(mine[..., 1])
    # Of a loop, in one of its turns.
    bad, nan = (
        np.any([_turns(x[..., n], mine[..., n]) > 0 for x in operands], axis=0)
        if operands
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


def _first(graph: _Graph, output: _Value, is_bad: Any, is_new: Any) -> _Value | None:
    """The first value that leads to an output through bad ones, and is new.

    Of a loop of many turns the counts do not tell in which one a value is bad: if none is
    known to be new, it is the first one of a loop that is given no bad ones.
    """
    order = {value: n for n, value in enumerate(graph.births)}
    seen, queue = {output}, [output]
    for each in queue:
        if each in graph.joins or is_bad(each):
            more = [x for x in graph.sources.get(each, ()) if x not in seen]
            seen.update(more)
            queue += dict.fromkeys(more)
    found = [x for x in queue if x in order and is_bad(x)]
    in_loops = [
        x for x in found if x in graph.loops and not any(map(is_bad, graph.loops[x]))
    ]
    found = [x for x in found if is_new(x)] or in_loops
    return min(found, key=lambda x: order[x], default=None)
