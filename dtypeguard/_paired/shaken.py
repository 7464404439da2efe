"""Rounds results and constants otherwise: another draw of the roundings of a program."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.dtypes import kind
from .._leaves.types import DType, Leaf
from .._numbers.primitives import NO_SUM, Sum

# Rounding to nearest is off by a twelfth of a squared unit in the last place. One in 24
# moves up by a unit, and as many down; somewhat more, since some stay.
_RARE = 23
# A constant with so many binary digits after the first was meant as it is.
_FEW_DIGITS = 4
# From so many places a result takes its numbers. The steps to the next result, to the next
# turn of a loop and to a loop inside it are odd, so all places come before one comes again.
_PLACES, _APART, _TURN, _NESTED = 2**18, 0x9E3779B1, 0x2C1B3C6D, 0x297A2D39


class Draw(NamedTuple):
    """The random numbers of one draw of roundings, from which each result takes some.

    One array serves all: the numbers of a place follow those of the one before.

    Attributes:
        steps: int8, -1, 0 or 1 units in the last place; None if results stay.
        parts: int8, uniform.
        start: the first place in this turn of a loop, a uint32; None outside of loops.
    """

    steps: Leaf | None
    parts: Leaf
    start: Leaf | None = None

    def in_turn(self, turn: Leaf) -> "Draw":
        """The numbers for a turn of a loop; those of other turns are others."""
        start = _uint(0) if self.start is None else self.start * _uint(_NESTED)
        place = start + (turn.astype(np.uint32) + _uint(1)) * _uint(_TURN)
        return self._replace(start=lax.rem(place, _uint(_PLACES)))

    def taken(self, numbers: Leaf, shape: tuple[int, ...], number: int) -> Leaf:
        """Those of the numbers that the result with a number of its own takes."""
        count, first = math.prod(shape), number * _APART % _PLACES
        if count > numbers.size - 2 * _PLACES:  # larger than any that was known
            numbers = jnp.tile(numbers, -(-(count + 2 * _PLACES) // numbers.size))
        if self.start is None:
            own = lax.slice(numbers, (first,), (first + count,))
        else:
            own = lax.dynamic_slice(numbers, (self.start + _uint(first),), (count,))
        return lax.reshape(own, shape)


def draw(seed: int, size: int, moves_results: bool = True) -> Draw:
    """A draw of roundings, as NumPy arrays.

    Args:
        seed: 0 moves nothing.
        size: of the largest result.
        moves_results: whether results move, or the constants of the source alone.
    """
    count = size + 2 * _PLACES
    if not seed:
        none = np.zeros(count, np.int8)
        return Draw(none if moves_results else None, none)
    random = np.random.default_rng(seed)
    parts, steps = random.integers(-128, 128, count, np.int8), None
    if moves_results:
        rare = random.integers(0, _RARE, count, np.int8)
        steps = (rare == 0).astype(np.int8) - (rare == 1).astype(np.int8)
    return Draw(steps, parts)


def shaken(x: Leaf, draw: Draw, number: int, added: Sum = NO_SUM) -> Leaf:
    """A rounded result with some elements moved to another number of its dtype.

    What is moved adds as much to the variance as rounding to nearest has. What probably
    was not rounded stays: 0, numbers with few digits, what is not finite.

    Args:
        x: the result, of any shape and of a floating or complex dtype.
        draw: the random numbers.
        number: of the result in the program.
        added: of what it is the sum, each number in this dtype. In another order, one after
            another, the partial sums round by the root of a third of their number. Those
            along an axis move together.
    """
    if kind(x.dtype) == "complex":
        parts = enumerate((lax.real(x), lax.imag(x)))
        parts = (shaken(y, draw, 2 * number + n, added) for n, y in parts)
        return lax.complex(*parts)
    width = 8 * x.dtype.itemsize
    info = jnp.finfo(x.dtype) if kind(x.dtype) == "float" else None
    if info is None or info.bits != width or not x.size or draw.steps is None:
        return x
    axis = added.axis
    units = (added.terms / 3) ** 0.5 if width >= 32 else 1.0  # narrower ones add in float32
    if units < 2 or axis is None:
        integer = jnp.dtype(f"int{width}")
        if units < 2:
            steps = draw.taken(draw.steps, x.shape, number)
        else:
            part = draw.taken(draw.parts, x.shape, number).astype(np.float32)
            steps = lax.round(part * jnp.float32(units / 256))
        bits = lax.bitcast_convert_type(x, integer) + steps.astype(integer)
        moved = lax.bitcast_convert_type(bits, x.dtype)
    else:
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        part = draw.taken(draw.parts, shape, number).astype(np.float32)
        count = lax.broadcasted_iota(np.float32, x.shape, axis) + 1
        count = lax.rev(count, (axis,)) if added.is_reverse else count
        part = part * jnp.sqrt(count / x.shape[axis]) * jnp.float32(units / 256)
        greatest = lax.cummax(jnp.abs(x), axis, added.is_reverse)  # of the sums so far
        eps = jnp.asarray(info.eps, x.dtype)
        moved = x + part.astype(x.dtype) * greatest * eps
    most = np.asarray(info.max, x.dtype)
    if width > 8:
        moved = lax.clamp(-most, moved, most)
        stays = lax.reduce_precision(x, info.nexp, info.nmant // 2) == x
    else:
        stays = (lax.round(x) == x) | ~(jnp.abs(x) < most)
    return lax.select(stays, x, moved)


def shaken_constant(x: Leaf, dtype: DType, draw: Draw, number: int) -> Leaf:
    """A constant as it may have been before it was rounded to a dtype.

    What has few digits was probably meant as it is: 0.5, 3, 10.

    Args:
        x: the constant in a wide dtype, a scalar.
        dtype: the dtype that it was rounded to.
        draw: the random numbers; the constant is the same in each turn of a loop.
        number: of the constant in the program.
    """
    nmant = jnp.finfo(dtype).nmant
    few = lax.reduce_precision(x, jnp.finfo(x.dtype).nexp, min(_FEW_DIGITS, nmant))
    same_in_turns = draw._replace(start=None)
    part = same_in_turns.taken(draw.parts, (), number).astype(x.dtype)
    # Half a unit in the last place.
    off = part * jnp.asarray(2.0 ** -(nmant + 1) / 128, x.dtype)
    return jnp.where(few == x, x, x + x * off)


def _uint(number: int) -> np.uint32:
    return np.uint32(number & 0xFFFFFFFF)
