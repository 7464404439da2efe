"""The values of a program as sketches, which tell how far two values are apart."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.dtypes import kind
from .._leaves.types import Leaf
from .._program.jaxprs import Stack, value_kind
from .._program.program import SCAN, Node
from .._program.walk import Walk
from . import plans
from .nodes import Noted
from .probes import Probes
from .program import NumericProgram
from .run import run

_BUCKETS = 64
# What is larger, such as a mask of -1e30, would hide the rest of a value.
_LARGE = 1e20


class SketchNode(NamedTuple):
    """A value of a program.

    Attributes:
        operands: the values that it is made of; None for constants.
        shape: its shape.
        stack: of the equation that makes it; () for an input.
        sketch: in the first turn of the loops around it, if known.
    """

    operands: tuple[int | None, ...]
    shape: tuple[int, ...]
    stack: Stack
    sketch: np.ndarray | None


def sketches(
    program: NumericProgram, arrays: Sequence[Leaf]
) -> tuple[list[SketchNode], list[int | None]]:
    """Returns the values of a program in wide types, and the numbers of its outputs."""
    noted: Noted = {}
    probes = Probes(noted, _note_sketch)
    run(program, plans.wide(program), arrays, probes)
    walk = _SketchWalk(program, noted)
    arguments = range(len(walk.nodes))
    outputs = walk.block(program.block, arguments)
    return walk.nodes, outputs


class _SketchWalk(Walk[int | None]):
    """Numbers the values of a program; loops are looked into in their first turn."""

    def __init__(self, program: NumericProgram, noted: Noted):
        self._noted = noted
        self.nodes: list[SketchNode] = []
        for aval in program.jaxpr.in_avals:
            self.nodes.append(SketchNode((), aval.shape, (), None))

    def constant(self, var, array):
        return None

    def computed(self, node, operands):
        places = range(len(node.eqn.outvars))
        return [self._new(operands, node, place) for place in places]

    # A value inside is one of several turns, branches or shards, and has no one sketch.
    visit_while = visit_cond = visit_shard_map = visit_custom_linear_solve = computed

    def visit_scan(self, node, operands):
        results = self.block(node.inner[0], operands)
        return [self._new([result], node, place) for place, result in enumerate(results)]

    def _new(self, operands: Sequence[int | None], node: Node, place: int) -> int:
        shape = getattr(node.eqn.outvars[place].aval, "shape", ())
        sketch = self._noted.get((node.number, str(place)))
        if sketch is not None:
            turns = np.asarray(sketch, np.float64)
            # One turn tells loops apart, and later turns have longer ways of rounding.
            sketch = turns[_first_turns(node.stack)]
        value = SketchNode(tuple(operands), shape, node.stack, sketch)
        self.nodes.append(value)
        return len(self.nodes) - 1


def _first_turns(stack: Stack) -> tuple[int, ...]:
    """Returns the first turn of each `scan` around an equation, outside in."""
    turns: list[int] = []
    for outer in reversed(stack[1:]):
        if outer.primitive.name == SCAN:
            turns.append(-1 if outer.params["reverse"] else 0)
    return tuple(turns)


def _note_sketch(array: Leaf, operands: Sequence[Leaf]) -> Leaf | None:
    if value_kind(array) is None:
        return None
    return _sketch(array)


@jax.jit
def _sketch(array: Leaf) -> Leaf:
    """Returns sums of an array's numbers with signs.

    Their distance is about that of the arrays: the mean of the squared distance over signs
    is that of the arrays. An array of up to 64 numbers is its own sketch.
    """
    if kind(array.dtype) == "complex":
        parts = [jnp.real(array), jnp.imag(array)]
        array = jnp.stack(parts)
    flat = array.reshape(-1).astype(np.float64)
    # Infinity, or not a number, is as good as one number.
    flat = jnp.where(abs(flat) < _LARGE, flat, 3.0)
    rows = max(math.ceil(flat.size / _BUCKETS), 1)
    padding = rows * _BUCKETS - flat.size
    flat = jnp.pad(flat, (0, padding))
    # The same signs each time, so that sketches of two programs are compared; in 8 bits,
    # since the compiled program holds them.
    random = np.random.default_rng(0)
    signs = random.choice([-1, 1], flat.size)
    small_signs = signs.astype(np.int8)
    signed = flat * lax.convert_element_type(small_signs, np.float64)
    return jnp.sum(signed.reshape(rows, _BUCKETS), axis=0)
