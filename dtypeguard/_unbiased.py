"""Updates so small that a narrow param would never take them up."""

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from ._dtypes import cast


def unbiased_update(param: Any, update: Any, seed: Any) -> Any:
    """An update that moves a param by the right amount on average.

    bfloat16 has 8 bits: `p + u` is `p` for every `u` below `p / 512`, however often it is
    added. Here `p + u` is rounded up or down to a neighbour in the dtype of `p`, at
    random with the odds that make the mean exact, and the update is the way to there.
    Params of 32 bits or more get `update` itself.

    Args:
        param: the param, of any floating dtype.
        update: a float32 array for params narrower than that.
        seed: an unsigned 32-bit scalar, another one for each leaf and step. The random
            bits are a function of it and of an entry's position: the same in every run
            and under every sharding.

    Returns:
        The update in the dtype of `param`. Its derivative is that of `update`.
    """
    spare_bits = 23 - jnp.finfo(param.dtype).nmant
    if spare_bits <= 0:
        return cast(update, param.dtype)
    wide = cast(param, jnp.float32)
    target = lax.stop_gradient(wide + update)
    lowest = jnp.uint32(2**spare_bits - 1)
    bits = lax.bitcast_convert_type(target, jnp.uint32)
    bits = (bits + (_random_bits(target.shape, seed) & lowest)) & ~lowest
    rounded = lax.bitcast_convert_type(bits, jnp.float32)
    rounded = jnp.where(jnp.isfinite(target), rounded, target)
    move = rounded - lax.stop_gradient(wide)
    return cast(update + lax.stop_gradient(move - update), param.dtype)


def _random_bits(shape: tuple[int, ...], seed: Any) -> Any:
    """A 32-bit hash of each position (the finalizer of MurmurHash3, by A. Appleby)."""
    bits = jnp.broadcast_to(seed * jnp.uint32(0x9E3779B9), shape)
    for axis in range(len(shape)):
        stride = jnp.uint32(math.prod(shape[axis + 1 :]) % 2**32)
        bits += lax.broadcasted_iota(jnp.uint32, shape, axis) * stride
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> jnp.uint32(shift))) * jnp.uint32(factor)
    return bits ^ (bits >> jnp.uint32(16))
