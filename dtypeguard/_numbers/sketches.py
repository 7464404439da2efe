"""The values of a program as sketches, which tell how far two values are apart."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.dtypes import kind
from .._leaves.types import Aval, Leaf
from .._program.jaxprs import Stack
from .._program.program import CALL, Node
from . import plans
from .nodes import Noted
from .plans import Propagation
from .probes import Probes
from .program import NumericProgram
from .run import run

_BUCKETS = 64
# What is larger, such as a mask of -1e30, would hide the rest of a value.
_LARGE = 1e20


class SketchNode(NamedTuple):
    """A value of a program."""

    operands: tuple[int | None, ...]  # the values it is made of; None for constants
    shape: tuple[int, ...]
    stack: Stack  # of the equation that makes it; () for an input
    sketch: np.ndarray | None  # in the first turn of the loops around it, if known


def sketches(
    program: NumericProgram, arrays: Sequence[Leaf]
) -> tuple[list[SketchNode], list[int | None]]:
    """The values of a program in wide types in order, and the numbers of its outputs."""
    noted: Noted = {}
    run(program, plans.wide(program), arrays, Probes(noted, _note_sketch))
    values = _Values(program, noted)
    given = [*range(len(values.nodes))]
    return values.nodes, values.block(program.block, given)


class _Values(Propagation[int | None]):
    """Numbers the values of a program; loops are looked into in their first turn."""

    def __init__(self, program: NumericProgram, noted: Noted):
        super().__init__(program)
        self._noted = noted
        self.nodes = [SketchNode((), x.shape, (), None) for x in program.jaxpr.in_avals]

    def constant(self, array: Leaf, aval: Aval) -> None:
        return None

    def node(self, node: Node, values: list[int | None]) -> Sequence[int | None]:
        if node.rule == CALL:
            return self.block(node.inner[0], values)
        places = range(len(node.eqn.outvars))
        if node.rule == "scan":
            body = self.block(node.inner[0], values)
            return [self._new([body[n]], node, n) for n in places]
        return [self._new(values, node, n) for n in places]

    def _new(self, operands: Sequence[int | None], node: Node, place: int) -> int:
        shape = getattr(node.eqn.outvars[place].aval, "shape", ())
        sketch = self._noted.get((node.number, place))
        if sketch is not None:
            loops = [x for x in node.stack[:0:-1] if x.primitive.name == "scan"]
            first = (*(-1 if loop.params["reverse"] else 0 for loop in loops),)
            sketch = np.asarray(sketch, np.float64)[first]
        self.nodes.append(SketchNode((*operands,), shape, node.stack, sketch))
        return len(self.nodes) - 1


def _note_sketch(array: Leaf, operands: Sequence[Leaf]) -> Leaf | None:
    return None if kind(getattr(array, "dtype", None)) is None else _sketch(array)


@jax.jit
def _sketch(array: Leaf) -> Leaf:
    """Sums of the numbers of an array with signs, whose distance is about that of arrays.

    The mean of the squared distance over signs is that of the arrays. An array of up to 64
    numbers is its own sketch.
    """
    if kind(array.dtype) == "complex":
        array = jnp.stack([jnp.real(array), jnp.imag(array)])
    flat = lax.convert_element_type(lax.reshape(array, (array.size,)), np.float64)
    # Infinity, or not a number, is as good as one number.
    flat = lax.select(lax.abs(flat) < _LARGE, flat, lax.full_like(flat, 3))
    rows = -(-flat.size // _BUCKETS) or 1
    flat = lax.pad(flat, np.float64(0), [(0, rows * _BUCKETS - flat.size, 0)])
    signs = np.random.default_rng(0).choice([-1, 1], flat.size).astype(np.int8)
    signed = flat * lax.convert_element_type(signs, np.float64)
    return lax.reduce(signed.reshape(rows, _BUCKETS), np.float64(0), lax.add, (0,))
