"""Stochastic rounding: a narrowing cast that is right on average, and its random bits.

A value between two neighbours of a narrow dtype goes to either, to the nearer one with the
greater probability, so that the mean over the noise is the value itself. Updates too small
for round-to-nearest then add up instead of vanishing.

References:
    Gupta, Agrawal, Gopalakrishnan, Narayanan, "Deep Learning with Limited Numerical
    Precision", 2015, section 3, https://arxiv.org/abs/1502.02551.

    Connolly, Higham, Mary, "Stochastic Rounding and Its Probabilistic Backward Error
    Analysis", 2021, SIAM J. Sci. Comput. 43(1), https://doi.org/10.1137/20M1334796.

    Zamirai, Zhang, Aberger, De Sa, "Revisiting BFloat16 Training", 2020: why parameters in
    bfloat16 need it, https://arxiv.org/abs/2010.06192.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.dtypes import cast, dtype_of, kind
from .._leaves.types import DType

_WORD = 2**32


def rounds(dtype: DType) -> bool:
    """Whether `stochastic_round` rounds to a dtype: bfloat16, float16, an 8-bit float.

    Not to float8_e8m0fnu, which has neither sign nor zero, nor below 8 bits.
    """
    narrow = kind(dtype) == "float" and 8 <= jnp.finfo(dtype).bits < 32
    return narrow and bool(np.zeros((), dtype) == 0)


def stochastic_round(x: Any, dtype: DType, bits: jax.Array) -> jax.Array:
    """A floating array in a narrower dtype, up or down such that its mean is the value.

    Exact values stay exact, NaN and infinities stay. From the largest finite value of
    `dtype` on it rounds to nearest, so that nothing overflows that would not anyway.

    Args:
        x: a floating array. float64 is first rounded to the nearest float32.
        dtype: any floating dtype. A cast that is exact (to a wider one), and one to 32 or
            64 bits, is the plain one.
        bits: uniformly random uint32 of the shape of `x`, as `random_bits` makes them.

    Returns:
        `x` in `dtype`. The mean over `bits` is `x` exactly for bfloat16 and for the normal
        range of the others; below that, to within 2**-32 of the spacing. Its derivative
        is that of the plain cast.
    """
    if dtype_of(x).itemsize < dtype.itemsize or dtype_of(x) == dtype or not rounds(dtype):
        return cast(x, dtype)
    return _round(cast(x, jnp.float32), dtype, bits)


@functools.partial(jax.jit, static_argnums=1)
def round_with(
    x: jax.Array, dtype: DType, words: Sequence[Any], after: jax.Array | None = None
) -> jax.Array:
    """`stochastic_round` with the bits of some words, traced once for each shape and dtype.

    A model has hundreds of leaves, and the tens of operations on bits that the rounding of
    one takes would be traced and lowered for each.

    Args:
        x: a floating array.
        dtype: what to round it to.
        words: see `random_bits`; Python ints among them are below 2**31.
        after: a floating array of the shape of `x` that reads what the result is written
            over. XLA copies what is read and written in no certain order, and makes that
            copy on one core; with this it computes `after` first.

    Returns:
        `x` in `dtype`, the same with `after` as without.
    """
    if not rounds(dtype):  # without jit the bits would be drawn for nothing
        return cast(x, dtype)
    bits = random_bits(words, x.shape)
    return stochastic_round(x, dtype, bits if after is None else bits | _nothing_of(after))


def _nothing_of(x: jax.Array) -> jax.Array:
    """Zeros, uint32, that hang on a floating array, as far as XLA can tell.

    The compiler of its kernels does see that two shifts leave nothing, and reads nothing.
    """
    bits = jnp.finfo(x.dtype).bits
    word = lax.bitcast_convert_type(x, jnp.dtype(f"uint{bits}"))
    return (word >> bits // 2 >> bits // 2).astype(jnp.uint32)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _round(x: jax.Array, dtype: DType, bits: jax.Array) -> jax.Array:
    return (_to_bfloat16 if dtype == jnp.bfloat16 else _to_small)(x, dtype, bits)


@_round.defjvp
def _round_jvp(dtype, primals, tangents):
    return _round(primals[0], dtype, primals[1]), tangents[0].astype(dtype)


def _to_bfloat16(x: jax.Array, dtype: DType, bits: jax.Array) -> jax.Array:
    """bfloat16 is the upper half of float32: adds noise to the lower half, cuts it off."""
    word = lax.bitcast_convert_type(x, jnp.uint32)
    magnitude = word & 0x7FFFFFFF
    noise = jnp.where(magnitude >= 0x7F7F0000, jnp.uint32(0x8000), bits >> 16)
    is_nan = magnitude > 0x7F800000  # keep its sign, be quiet, do not carry
    word = jnp.where(is_nan, word | 0x00400000, word + noise)
    return lax.bitcast_convert_type((word >> 16).astype(jnp.uint16), dtype)


def _to_small(x: jax.Array, dtype: DType, bits: jax.Array) -> jax.Array:
    """The same for any format within float32's range: drop bits by exponent.

    Below the smallest normal number the spacing stays, so more bits are dropped there.
    """
    info = jnp.finfo(dtype)
    mantissa, lowest_exponent = int(info.nmant), int(info.minexp) + 127
    word = lax.bitcast_convert_type(x, jnp.uint32)
    magnitude = word & 0x7FFFFFFF
    exponent = jnp.maximum(magnitude >> 23, jnp.uint32(1))
    hidden = jnp.where(magnitude >> 23 > 0, jnp.uint32(1 << 23), jnp.uint32(0))
    significand = magnitude & 0x7FFFFF | hidden
    binade = jnp.maximum(exponent, jnp.uint32(lowest_exponent))
    dropped = binade - exponent + (23 - mantissa)
    near = jnp.minimum(dropped, jnp.uint32(31))
    far = jnp.clip(dropped, jnp.uint32(32), jnp.uint32(56)) - 32
    count = jnp.where(  # of spacings
        dropped < 32,
        significand + (bits >> (32 - near)) >> near,
        (bits < significand >> far).astype(jnp.uint32),
    )
    spacing = lax.bitcast_convert_type(binade - mantissa << 23, jnp.float32)
    rounded = count.astype(jnp.int32).astype(jnp.float32) * spacing
    rounded = jnp.where(word >> 31 > 0, -rounded, rounded)
    largest = np.float32(info.max).view(np.uint32)
    return jnp.where(magnitude < largest, rounded, x).astype(dtype)


def random_bits(words: Sequence[Any], shape: tuple[int, ...]) -> jax.Array:
    """Uniform uint32 bits, a pure function of some words and the place in the array.

    A keyed 32-bit mixer of each element's index: a handful of integer operations that XLA
    fuses with the rounding. As the index is that of the whole array, an array sharded over
    devices gets the bits that it gets on one, and no device asks another. Good enough for
    noise; not a generator for anything else.

    Args:
        words: what tells streams apart (seed, step, leaf): ints or uint32 scalars.
        shape: of the bits.

    Returns:
        A uint32 array.

    References:
        Wellons, "Prospecting for Hash Functions", 2018 (the mixer is `triple32`),
        https://nullprogram.com/blog/2018/07/31/; Salmon, Moraes, Dror, Shaw, "Parallel
        Random Numbers: As Easy as 1, 2, 3", 2011 (bits from a counter),
        https://doi.org/10.1145/2063384.2063405.
    """
    first, second = jnp.uint32(0x243F6A88), jnp.uint32(0x85A308D3)  # pi's first digits
    for word in words:
        word = jnp.asarray(word, jnp.uint32)
        first, second = _mix(first ^ word, second), _mix(second + word, first)
    low, high = _index(shape)
    if high is not None:
        second = _mix(high ^ second, first)
    return _mix(low + first, second)


def _mix(word: jax.Array, key: jax.Array) -> jax.Array:
    """`triple32`, keyed before the last of its three multiplications.

    Without the key two streams would be one sequence, shifted; a key after less mixing
    leaves some pairs of streams with more words in common than chance has it.
    """
    word = (word ^ word >> 17) * jnp.uint32(0xED5AD4BB)
    word = (word ^ word >> 11) * jnp.uint32(0xAC4C1B51)
    word = (word ^ word >> 15 ^ key) * jnp.uint32(0x31848BAB)
    return word ^ word >> 14


def _index(shape: tuple[int, ...], limit: int = _WORD) -> tuple[jax.Array, Any]:
    """Each element's place in the array: one word, and another above `limit` elements."""
    iota = functools.partial(lax.broadcasted_iota, jnp.uint32, shape)
    words: list[Any] = [jnp.zeros(shape, jnp.uint32), None]
    which, stride = 0, 1
    for axis in reversed(range(len(shape))):
        if stride * shape[axis] > limit:
            which, stride = 1, 1
            words[1] = jnp.zeros(shape, jnp.uint32) if words[1] is None else words[1]
        words[which] = words[which] + iota(axis) * jnp.uint32(stride)
        stride *= shape[axis]
    return words[0], words[1]
