"""Rounds results and constants otherwise: another draw of the roundings of a program."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.dtypes import kind
from .._leaves.types import DType, Leaf

# Rounding to nearest is off by a twelfth of a squared unit in the last place. One in 24
# moves up by a unit, and as many down.
_SHARE = np.uint32(2**32 // 24)
# Of the binary digits of a constant, after the first.
_FEW_DIGITS = 4


def shaken(x: Leaf, seed: Leaf, salt: int, terms: int = 1, axis: int | None = None) -> Leaf:
    """A rounded result with some elements moved to another number of its dtype.

    What is moved adds as much to the variance as rounding to nearest has. What probably
    was not rounded stays: 0, small whole numbers, what is not finite.

    Args:
        x: the result, of any shape and of a floating or complex dtype.
        seed: a uint32; 0 moves nothing.
        salt: a number of the equation.
        terms: of how many numbers it is the sum, each in this dtype. In another order,
            one after another, the partial sums round by the root of a third of it.
        axis: along which it has the partial sums, if it has; they move together.
    """
    if kind(x.dtype) == "complex":
        parts = enumerate(_parts(x))
        parts = (shaken(y, seed, 2 * salt + n, terms, axis) for n, y in parts)
        return lax.complex(*parts)
    width = 8 * x.dtype.itemsize
    if kind(x.dtype) != "float" or jnp.finfo(x.dtype).bits != width or not x.size:
        return x
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{width}"))
    low = bits if width < 64 else bits ^ (bits >> jnp.uint64(29))
    index = lax.reshape(lax.iota(np.uint32, x.size), x.shape)
    units = (terms / 3) ** 0.5 if width >= 32 else 1.0  # narrower ones add in float32
    if units < 2:
        mixed = _mixed(low.astype(np.uint32) * _uint(0x9E3779B1), index, seed, salt)
        one = jnp.asarray(1, bits.dtype)
        moved = jnp.where(mixed < _SHARE, bits + one, bits)
        is_down = (mixed >= _SHARE) & (mixed < _SHARE + _SHARE)
        moved = jnp.where(is_down, bits - one, moved)
    elif axis is None:
        part = _between(_mixed(jnp.uint32(0), index, seed, salt))
        steps = lax.round(part * jnp.float32(units / 2)).astype(np.int32)
        moved = bits + steps.astype(bits.dtype)
    else:
        place = lax.broadcasted_iota(np.float32, x.shape, axis)
        index = index - place.astype(np.uint32) * _uint(math.prod(x.shape[axis + 1 :]))
        part = _between(_mixed(jnp.uint32(0), index, seed, salt))
        part = part * jnp.sqrt((place + 1) / x.shape[axis]) * jnp.float32(units / 2)
        # In units of the greatest sum so far.
        greatest = lax.cummax(jnp.abs(x), axis) * jnp.asarray(
            jnp.finfo(x.dtype).eps, x.dtype
        )
        moved = lax.bitcast_convert_type(x + part.astype(x.dtype) * greatest, bits.dtype)
    info = jnp.finfo(x.dtype)
    size = jnp.abs(x)
    is_whole = (lax.round(x) == x) & (size < jnp.asarray(2.0 ** (info.nmant // 2), x.dtype))
    is_rounded = (size < jnp.asarray(info.max, x.dtype)) & ~is_whole & (seed != _uint(0))
    return lax.bitcast_convert_type(jnp.where(is_rounded, moved, bits), x.dtype)


def shaken_constant(x: Leaf, dtype: DType, seed: Leaf, salt: int) -> Leaf:
    """A constant as it may have been before it was rounded to a dtype.

    What has few digits was probably meant as it is: 0.5, 3, 10.

    Args:
        x: the constant in a wide dtype, a scalar.
        dtype: the dtype that it was rounded to.
        seed: a uint32; 0 changes nothing.
        salt: a number of the constant.
    """
    nmant = jnp.finfo(dtype).nmant
    few = lax.reduce_precision(x, jnp.finfo(x.dtype).nexp, min(_FEW_DIGITS, nmant))
    is_even = (seed == _uint(0)) | (few == x)
    mixed = _mixed(jnp.uint32(0), jnp.uint32(0), seed, salt)
    part = mixed.astype(x.dtype) * jnp.asarray(2.0**-31, x.dtype) - jnp.asarray(1, x.dtype)
    # Half a unit in the last place.
    off = part * jnp.asarray(2.0 ** -(nmant + 1), x.dtype)
    return jnp.where(is_even, x, x + x * off)


def _mixed(bits: Leaf, index: Leaf, seed: Leaf, salt: int) -> Leaf:
    """Random bits for numbers, by what they are and where."""
    mixed = bits + index * _uint(0x85EBCA77)
    mixed = mixed + (seed * _uint(0xC2B2AE3D) + _uint(0x27D4EB2F * (salt + 1)))
    for by, times in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        mixed = (mixed ^ (mixed >> _uint(by))) * _uint(times)
    return mixed ^ (mixed >> _uint(15))


def _between(mixed: Leaf) -> Leaf:
    """Random bits as numbers between -1 and 1."""
    return mixed.astype(np.float32) * jnp.float32(2.0**-31) - jnp.float32(1)


def _parts(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return lax.real(x), lax.imag(x)


def _uint(number: int) -> np.uint32:
    return np.uint32(number & 0xFFFFFFFF)
