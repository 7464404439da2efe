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
from .._program.program import CALL, SCAN, Node
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
    run(program, plans.wide(program), arrays, Probes(noted, _note_sketch))
    walk = _SketchWalk(program, noted)
    arguments = list(range(len(walk.nodes)))
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

    def node(self, node, operands):
        # Two programs may call different functions for the same values.
        if node.rule == CALL:
            return self.block(node.inner[0], operands)
        places = range(len(node.eqn.outvars))
        if node.rule == SCAN:
            results = self.block(node.inner[0], operands)
            return [self._new([results[place]], node, place) for place in places]
        return [self._new(operands, node, place) for place in places]

    def _new(self, operands: Sequence[int | None], node: Node, place: int) -> int:
        shape = getattr(node.eqn.outvars[place].aval, "shape", ())
        sketch = self._noted.get((node.number, str(place)))
        if sketch is not None:
            # One turn tells loops apart, and later turns have longer ways of rounding.
            sketch = np.asarray(sketch, np.float64)[_first_turns(node.stack)]
        self.nodes.append(SketchNode(tuple(operands), shape, node.stack, sketch))
        return len(self.nodes) - 1


def _first_turns(stack: Stack) -> tuple[int, ...]:
    """Returns the first turn of each `scan` around an equation, outside in."""
    turns: list[int] = []
    for outer in reversed(stack[1:]):
        if outer.primitive.name == SCAN:
            turns.append(-1 if outer.params["reverse"] else 0)
    return tuple(turns)


def _note_sketch(array: Leaf, operands: Sequence[Leaf]) -> Leaf | None:
    is_number = value_kind(array) is not None
    return _sketch(array) if is_number else None


@jax.jit
def _sketch(array: Leaf) -> Leaf:
    """Returns sums of an array's numbers with signs.

    Their distance is about that of the arrays: the mean of the squared distance over signs
    is that of the arrays. An array of up to 64 numbers is its own sketch.
    """
    if kind(array.dtype) == "complex":
        array = jnp.stack([jnp.real(array), jnp.imag(array)])
    flat = array.reshape(-1).astype(np.float64)
    # Infinity, or not a number, is as good as one number.
    flat = jnp.where(abs(flat) < _LARGE, flat, 3.0)
    rows = max(math.ceil(flat.size / _BUCKETS), 1)
    flat = jnp.pad(flat, (0, rows * _BUCKETS - flat.size))
    # The same signs each time, so that sketches of two programs are compared; in 8 bits,
    # since the compiled program holds them.
    random = np.random.default_rng(0)
    signs = random.choice([-1, 1], flat.size).astype(np.int8)
    signed = flat * lax.convert_element_type(signs, np.float64)
    return jnp.sum(signed.reshape(rows, _BUCKETS), axis=0)
