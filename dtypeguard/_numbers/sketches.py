"""The values of a program as sketches, which tell how far two values are apart."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.dtypes import kind
from .._leaves.types import Leaf
from .._program.graph import Stack
from . import nodes as _nodes, plans
from .program import NumericProgram
from .run import Counts, Probes, run
from .subject import largest

_BUCKETS = 64
# What is larger, such as a mask of -1e30, would hide the rest of a value.
_LARGE = 1e20


class SketchNode(NamedTuple):
    """A value of a program.

    Attributes:
        operands: the numbers of the values that it is made of; inputs come first. None for
            constants.
        shape: its shape.
        stack: the equation that makes it and those around it; () for an input.
        sketch: of what it is in the first turn of the loops around it; None if not known.
    """

    operands: tuple[int | None, ...]
    shape: tuple[int, ...]
    stack: Stack
    sketch: np.ndarray | None


def sketches(
    program: NumericProgram, arrays: Sequence[Leaf]
) -> tuple[list[SketchNode], list[int | None]]:
    """The values of a program in wide types in order, and the numbers of its outputs.

    Args:
        program: the program.
        arrays: its inputs.
    """
    noted: Counts = {}
    note = _sketch_by(_signs_for(program))
    run(program, plans.wide(program), arrays, Probes(finite=noted, note=note))
    nodes = [SketchNode((), each.shape, (), None) for each in program.jaxpr.in_avals]

    def sketch_of(stack: Stack, key: tuple[int, int]) -> np.ndarray | None:
        names = [eqn.primitive.name for eqn in stack[1:]]
        if key not in noted or "while" in names:
            return None
        found = np.asarray(noted[key], np.float64)
        for eqn in stack[:0:-1]:
            if eqn.primitive.name == "scan":
                if not len(found):
                    return None
                found = found[-1 if eqn.params["reverse"] else 0]
        return found if found.size else None

    def new(operands: Sequence[int | None], each: _nodes.Node, place: int) -> int:
        shape = getattr(each.eqn.outvars[place].aval, "shape", ())
        sketch = sketch_of(each.stack, (each.number, place))
        nodes.append(SketchNode((*operands,), shape, each.stack, sketch))
        return len(nodes) - 1

    def add(block: _nodes.Block, given: Sequence[int | None]) -> list[int | None]:
        consts = len(block.inputs) - len(given)
        values = dict(zip(block.inputs, [*[None] * consts, *given]))
        read = lambda var: None if hasattr(var, "val") else values.get(var)
        for each in block.nodes:
            operands, count = [*map(read, each.eqn.invars)], range(len(each.eqn.outvars))
            if each.rule == "call":
                made = add(each.inner[0], operands)
            elif each.rule == "scan":
                body = add(each.inner[0], operands)
                made = [new([body[n]], each, n) for n in count]
            else:
                made = [new(operands, each, n) for n in count]
            values |= zip(each.eqn.outvars, made)
        return [*map(read, block.outputs)]

    return nodes, add(program.block, range(len(nodes)))


def _signs_for(program: NumericProgram) -> np.ndarray:
    """A sign for each number of the largest value of a program."""
    # Complex numbers are two.
    rows = 2 * (-(-largest(program.jaxpr) // _BUCKETS) or 1)
    return np.random.default_rng(0).choice([-1.0, 1.0], rows * _BUCKETS)


def _sketch_by(signs: np.ndarray) -> Callable[[Leaf], Leaf | None]:
    """What notes a sketch of an array."""
    sketched = jax.jit(_sketch)
    return lambda array: (
        None
        if kind(getattr(array, "dtype", None)) is None
        else sketched(array, signs[: _rows(array) * _BUCKETS])
    )


def _rows(array: Leaf) -> int:
    size = array.size * (2 if kind(array.dtype) == "complex" else 1)
    return -(-size // _BUCKETS) or 1


def _sketch(array: Leaf, signs: Leaf) -> Leaf:
    """Sums of the numbers of an array with signs, whose distance is about that of arrays.

    The mean of the squared distance over signs is that of the arrays. An array of up to 64
    numbers is its own sketch.
    """
    rows = _rows(array)
    if kind(array.dtype) == "complex":
        array = jnp.stack([jnp.real(array), jnp.imag(array)])
    flat = lax.convert_element_type(lax.reshape(array, (array.size,)), np.float64)
    # Infinity, or not a number, is as good as one number.
    flat = lax.select(lax.abs(flat) < _LARGE, flat, lax.full_like(flat, 3))
    if rows * _BUCKETS > flat.size:
        flat = lax.pad(flat, np.float64(0), [(0, rows * _BUCKETS - flat.size, 0)])
    signed = flat * jnp.asarray(signs)
    return lax.reduce(signed.reshape(rows, _BUCKETS), np.float64(0), lax.add, (0,))
