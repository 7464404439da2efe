"""The values of a program as sketches, which tell how far two values are apart."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.dtypes import kind
from .._leaves.types import Equation, Jaxpr, Leaf
from .._program.expand import expanded
from .._program.graph import Stack, jaxprs_in, loop_parts, open_jaxpr
from .._rounding.rounding import round_with
from .._numbers import primitives
from .gradients import Key, PlainValue, key_of
from .plain import Plain

_BUCKETS = 64
# What is larger, such as a mask of -1e30, would hide the rest of a value.
_LARGE = 1e20


class _Place(NamedTuple):
    """The result of an equation."""

    key: Key
    number: int


class Node(NamedTuple):
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


class Sketched(Plain):
    """A program in wide types that returns a sketch of each value in place of decisions."""

    decisions: list
    _signs: Leaf

    def sketches(self, arrays: Sequence[Leaf], signs: Leaf) -> list[Leaf]:
        """The sketches of all values; `signs` as `signs_for` gives them."""
        self._signs = signs
        return self.run(arrays)[1]

    def _equation(
        self, eqn: Equation, values: list[PlainValue], stack: Stack
    ) -> Sequence[PlainValue]:
        made = super()._equation(eqn, values, stack)
        for number, value in enumerate(made):
            if kind(getattr(value.array, "dtype", None)) is not None:
                place: object = _Place(key_of(stack), number)
                self._chose(place, sketch(value.array, self._signs))  # pyright: ignore[reportArgumentType]: of a list of its own
        return made

    def _decided(
        self, eqn: Equation, operands: list[Leaf], made: list[Leaf], stack: Stack
    ) -> None:
        """Notes no decisions."""


def signs_for(size: int) -> np.ndarray:
    """The signs of `sketch` for arrays of up to a size: one for each number."""
    rows = 2 * (-(-size // _BUCKETS) or 1)  # complex numbers are two
    return np.random.default_rng(0).choice([-1.0, 1.0], rows * _BUCKETS)


def sketch(array: Leaf, signs: Leaf) -> Leaf:
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
    if rows * _BUCKETS > flat.size:
        flat = lax.pad(flat, np.float64(0), [(0, rows * _BUCKETS - flat.size, 0)])
    if flat.size > signs.size:
        signs = jnp.tile(signs, -(-flat.size // signs.size))
    signed = flat * lax.slice(signs, (0,), (flat.size,))
    return lax.reduce(signed.reshape(rows, _BUCKETS), np.float64(0), lax.add, (0,))


def nodes_of(
    plain: Sketched, program: Jaxpr, made: Sequence[Leaf]
) -> tuple[list[Node], list[int | None]]:
    """The values of a program in order, and the numbers of its outputs.

    Args:
        plain: the program, traced.
        program: its closed jaxpr.
        made: the sketches that a run has returned.
    """
    pairs = zip(plain.decisions, made)
    known = {place: x for place, x in pairs if isinstance(place, _Place)}
    inside = open_jaxpr(program)
    nodes = [Node((), var.aval.shape, (), None) for var in inside.invars]

    def sketch_at(stack: Stack, number: int) -> np.ndarray | None:
        found = known.get(_Place(key_of(stack), number))
        if found is None or not found.size:
            return None
        found = np.asarray(found, np.float64)
        for eqn in stack[:0:-1]:
            if eqn.primitive.name == "scan":
                found = found[-1 if eqn.params["reverse"] else 0]
        return found

    def new(operands: Sequence[int | None], stack: Stack, number: int) -> int:
        shape = getattr(stack[0].outvars[number].aval, "shape", ())
        nodes.append(Node((*operands,), shape, stack, sketch_at(stack, number)))
        return len(nodes) - 1

    def add(jaxpr: Jaxpr, given: Sequence[int | None], outer: Stack) -> list[int | None]:
        values = dict(zip(open_jaxpr(jaxpr).invars, given))
        read = lambda var: None if hasattr(var, "val") else values.get(var)
        for eqn in open_jaxpr(jaxpr).eqns:
            stack, operands = (eqn, *outer), [*map(read, eqn.invars)]
            count = range(len(eqn.outvars))
            called = _called(eqn)
            if called is not None:
                found = add(called, operands, stack)
                is_seen = lambda each: (
                    each is None
                    or each < len(inside.invars)
                    or nodes[each].sketch is not None
                )
                made = [
                    f if is_seen(f) else new(operands, stack, n)
                    for n, f in zip(count, found)
                ]
            elif eqn.primitive.name == "scan":
                body = add(loop_parts(eqn).body, operands, stack)
                made = [new([body[n]], stack, n) for n in count]
            else:
                made = [new(operands, stack, n) for n in count]
            values |= zip(eqn.outvars, made)
        return [*map(read, open_jaxpr(jaxpr).outvars)]

    return nodes, add(program, range(len(nodes)), ())


def _called(eqn: Equation) -> Jaxpr | None:
    """The jaxpr that stands where an equation calls it; None if it is no such call."""
    inside = expanded(eqn)
    if inside is not None:
        return inside
    jaxprs = jaxprs_in(eqn.params)
    is_ours = eqn.params.get("name") == round_with.__name__  # pyright: ignore[reportAttributeAccessIssue]: as of any function
    is_call = eqn.primitive.name in primitives.CALLS and len(jaxprs) == 1
    return jaxprs[0] if is_call and not is_ours else None
