"""The values of a program as sketches, which tell how far two values are apart."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.types import Leaf
from .._program.jaxprs import Arrays, Stack, value_kind
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
        size: how many numbers it has. One program may reshape what another does not.
        stack: of the equation that makes it; () for an input.
        sketch: in the first turn of the loops around it, if known.
    """

    operands: tuple[int | None, ...]
    size: int
    stack: Stack
    sketch: np.ndarray | None


def sketches(
    program: NumericProgram, arrays: Arrays
) -> tuple[list[SketchNode], list[int | None]]:
    """Returns the values of a program in wide types, and the numbers of its outputs."""
    noted = Noted()
    probes = Probes(noted, _note_sketch)
    plan = plans.wide(program)
    run(program, plan, arrays, probes)
    walk = _SketchWalk(noted)
    arguments = []
    for aval in program.jaxpr.in_avals:
        value = SketchNode((), aval.size, (), None)
        arguments.append(walk.add(value))
    outputs = walk.block(program.block, arguments)
    return walk.nodes, outputs


class _SketchWalk(Walk[int | None]):
    """Numbers the values of a program; loops are looked into in their first turn."""

    def __init__(self, noted: Noted):
        self._noted = noted
        self.nodes: list[SketchNode] = []

    def add(self, value: SketchNode) -> int:
        """Returns the number of a value."""
        self.nodes.append(value)
        return len(self.nodes) - 1

    def constant(self, var, array):
        return None

    def computed(self, node, operands):
        makers = [operands for _ in node.eqn.outvars]
        return self._made(node, makers)

    def _made(self, node: Node, makers: Sequence[Sequence[int | None]]) -> list[int]:
        """Returns the results of an equation, by the values that each is made of."""
        numbers = []
        for place, var in enumerate(node.eqn.outvars):
            # A token has no size.
            size = getattr(var.aval, "size", 0)
            sketch = self._sketch_of(node, place)
            operands = tuple(makers[place])
            value = SketchNode(operands, size, node.stack, sketch)
            number = self.add(value)
            numbers.append(number)
        return numbers

    # A value inside is one of several turns, branches or shards, and has no one sketch.
    visit_while = visit_cond = visit_shard_map = visit_custom_linear_solve = computed

    def visit_scan(self, node, operands):
        body = node.inner[0]
        results = self.block(body, operands)
        return self._made(node, [[result] for result in results])

    def _sketch_of(self, node: Node, place: int) -> np.ndarray | None:
        """Returns the sketch of a result in the first turn of each `scan` around it."""
        key = (node.number, str(place))
        sketch = self._noted.get(key)
        if sketch is None:
            return None
        # One turn tells loops apart, and later turns have longer ways of rounding.
        turns = []
        for outer in reversed(node.stack[1:]):
            if outer.primitive.name == SCAN:
                turn = 0
                if outer.params["reverse"]:
                    turn = -1
                turns.append(turn)
        return np.asarray(sketch)[tuple(turns)]


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
    dtype = np.float64
    if jnp.iscomplexobj(array):
        dtype = np.complex128
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
    small_signs = signs.astype(np.int8)
    wide_signs = lax.convert_element_type(small_signs, dtype)
    signed = padded * wide_signs
    rows = signed.reshape(-1, _BUCKETS)
    return rows.sum(axis=0)
