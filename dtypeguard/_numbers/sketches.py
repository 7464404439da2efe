"""The values of a program as sketches, which tell how far two values are apart."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.types import Leaf
from .._program.graph import Graph
from .._program.jaxprs import Arrays, Stack, value_kind
from .._program.program import SCAN, Node
from . import plans
from .arithmetic import Values, wide_form
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
        operands: the values that it is made of, or may be.
        size: how many numbers it has. One program may reshape what another does not.
        stack: of the equation that makes it; () for inputs, constants and crossings.
        sketch: in the first turn of the loops around it, if known.
    """

    operands: Sequence[int]
    size: int
    stack: Stack
    sketch: np.ndarray | None


def sketches(program: NumericProgram, arrays: Arrays) -> tuple[list[SketchNode], list[int]]:
    """Returns the values of a program in wide types, and the numbers of its outputs."""
    probes = Probes(_note_sketches)
    run(program, plans.wide(program), arrays, probes)
    graph = _FirstTurns(program.block)
    values = []
    for value, aval in enumerate(graph.avals):
        # A token has no size.
        size = getattr(aval, "size", 0)
        stack = ()
        sketch = None
        if value in graph.made_by:
            node = graph.made_by[value]
            stack = node.stack
            place = node.eqn.outvars.index(graph.variables[value])
            sketch_by_turn = probes.noted.get((node.number, str(place)))
            # A loop with no turn has none.
            if sketch_by_turn is not None and sketch_by_turn.size:
                sketch = np.asarray(sketch_by_turn)[_first_turns(stack)]
        values.append(SketchNode(graph.sources(value), size, stack, sketch))
    return values, graph.outputs


class _FirstTurns(Graph):
    """The values of a program; loops are looked into in their first turn."""

    # A value inside is one of several turns, branches or shards, and has no one sketch.
    visit_while = visit_cond = visit_shard_map = Graph.computed

    def visit_scan(self, node, operands):
        results = self.block(node.inner[0], operands)
        values = []
        # Each result of a scan has a way of its own.
        for var, result in zip(node.eqn.outvars, results):
            value = self.new(var, [result])
            self.made_by[value] = node
            values.append(value)
        return values


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


def _note_sketches(node: Node, operands: Values, results: Values) -> Noted:
    noted = Noted()
    for place, result in enumerate(map(wide_form, results)):
        if value_kind(result) is not None:
            # JAX sorts keys, and those of decisions are words.
            noted[node.number, str(place)] = _sketch(result)
    return noted


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
    rows = padded.reshape(-1, _BUCKETS)
    # The same signs each time, so that sketches of two programs are compared.
    random = np.random.default_rng(0)
    is_negative = random.random(rows.shape) < 0.5
    signed = jnp.where(is_negative, -rows, rows)
    return signed.sum(axis=0)
