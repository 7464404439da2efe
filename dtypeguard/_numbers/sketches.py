"""The values of a program as sketches, which tell how far two values are apart."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.types import Leaf
from .._program.graph import Graph
from .._program.jaxprs import Arrays, Stack, value_kind
from .._program.program import CALL, SCAN, Block, Node
from . import plans
from .primitives import Noted
from .probes import Probes
from .program import NumericProgram
from .run import run

_BUCKETS = 64
# What is larger, such as a mask of -1e30, would hide the rest of a value.
_LARGE = 1e20


class SketchNode(NamedTuple):
    """A value of a program.

    Attributes:
        operands: the values that it is made of, but for constants.
        size: how many numbers it has. One program may reshape what another does not.
        stack: of the equation that makes it; () for an input or a constant.
        sketch: in the first turn of the loops around it, if known.
    """

    operands: frozenset[int]
    size: int
    stack: Stack
    sketch: np.ndarray | None


def sketches(program: NumericProgram, arrays: Arrays) -> tuple[list[SketchNode], list[int]]:
    """Returns the values of a program in wide types, and the numbers of its outputs."""
    noted = Noted()
    probes = Probes(noted, _note_sketch)
    plan = plans.wide(program)
    run(program, plan, arrays, probes)
    graph = _FirstTurns(program.block)
    values = []
    for value, aval in enumerate(graph.avals):
        sources = frozenset(graph.sources(value))
        operands = sources.difference(graph.constants)
        # A token has no size.
        size = getattr(aval, "size", 0)
        stack = ()
        sketch = None
        if value in graph.makers:
            node, place = graph.makers[value]
            stack = node.stack
            sketch_by_turn = noted.get((node.number, str(place)))
            # A loop with no turn has none.
            if sketch_by_turn is not None and sketch_by_turn.size:
                sketch = np.asarray(sketch_by_turn)[_first_turns(stack)]
        values.append(SketchNode(operands, size, stack, sketch))
    return values, graph.outputs


class _FirstTurns(Graph):
    """The values of a program; loops are looked into in their first turn.

    Attributes:
        makers: the node of each value that a node makes, and which of its results it is.
    """

    def __init__(self, block: Block):
        self.makers: dict[int, tuple[Node, int]] = {}
        super().__init__(block)

    def enter(self, block, arguments):
        # A slice stands for the array that is scanned.
        return dict(zip(block.arguments, arguments))

    def node(self, node, operands):
        results = super().node(node, operands)
        # What a call returns was made inside of it.
        if node.rule != CALL:
            for place, value in enumerate(results):
                self.makers[value] = (node, place)
        return results

    # A value inside is one of several turns, branches or shards, and has no one sketch.
    visit_while = visit_cond = visit_shard_map = Graph.computed

    def visit_call(self, node, operands):
        return self.block(node.inner[0], operands)

    def visit_scan(self, node, operands):
        results = self.block(node.inner[0], operands)
        return self.left(node, results)


def _first_turns(stack: Stack) -> tuple[int, ...]:
    """Returns the first turn of each `scan` around an equation, outside in."""
    # One turn tells loops apart, and later turns have longer ways of rounding.
    turns = []
    for outer in reversed(stack[1:]):
        if outer.primitive.name == SCAN:
            turn = 0
            if outer.params["reverse"]:
                turn = -1
            turns.append(turn)
    return tuple(turns)


def _note_sketch(array: Leaf, operands: Arrays) -> Leaf | None:
    if value_kind(array) is None:
        return None
    return _sketch(array)


@jax.jit
def _sketch(array: Leaf) -> Leaf:
    """Returns sums of an array's numbers with signs.

    Their distance is about that of the arrays: the mean of the squared distance over signs
    is that of the arrays. An array of up to 64 numbers is its own sketch.
    """
    dtype = np.promote_types(array.dtype, np.float64)
    flat = array.reshape(-1)
    flat = flat.astype(dtype)
    is_small = abs(flat) < _LARGE
    # Infinity, or not a number, is as good as one number.
    flat = jnp.where(is_small, flat, 3.0)
    padding = -flat.size % _BUCKETS
    padded = jnp.pad(flat, (0, padding))
    # The same signs each time, so that sketches of two programs are compared; in 8 bits,
    # since the compiled program holds them.
    random = np.random.default_rng(0)
    signs = random.choice([-1, 1], padded.size)
    wide_signs = lax.convert_element_type(signs.astype(np.int8), dtype)
    signed = padded * wide_signs
    rows = signed.reshape(-1, _BUCKETS)
    return rows.sum(axis=0)
