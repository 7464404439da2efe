"""A norm that neither overflows nor underflows."""

import jax
import jax.numpy as jnp
from jax import lax

from .dtypes import cast


def scaled_norm(x: jax.Array, least: jax.Array | float = 0) -> tuple[jax.Array, jax.Array]:
    """The norm of all entries as `scale * root`, two scalars of the dtype of `x`.

    `root` is the norm of `x / scale`, at least `least / scale`, or 0 if every entry is 0.
    Where the norm is 0, so is its derivative.

    `scale` is a power of two near the largest entry, so dividing by it is exact. XLA turns
    the division into a multiplication by `1 / scale`, and CPUs flush subnormal numbers to
    zero, so both `scale` and `1 / scale` are normal.
    """
    info = jnp.finfo(x.dtype)
    largest = lax.stop_gradient(jnp.max(jnp.abs(x), initial=0))
    bound = lax.reduce_precision(jnp.maximum(largest, least), int(info.nexp), 0)
    # As Python numbers they would be float32 where x64 is off, even beside float64.
    powers = int(info.minexp), int(info.maxexp) - 2
    scale = lax.stop_gradient(jnp.clip(bound, *(cast(2.0**n, x.dtype) for n in powers)))
    squares = jnp.sum((x / scale) ** 2)
    is_zero = squares == 0
    root = jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, squares)))
    return scale, jnp.where(largest == 0, 0, jnp.maximum(root, least / scale))
