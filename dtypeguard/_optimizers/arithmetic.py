"""Arithmetic that the optimizers share: dtypes, norms, powers, rounded steps."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util

from .._leaves.dtypes import cast, dtype_of, promoted
from .._leaves.types import DType, PyTree
from .._rounding.rounding import round_with, rounds

# A number, or a 0-d array that may be traced.
Scalar = float | np.number | jax.Array


def at_least_float32(tree: PyTree) -> DType:
    """Returns the dtype to compute in: float64 if a leaf is float64, else float32."""
    dtypes = [dtype_of(leaf) for leaf in tree_util.tree_leaves(tree)]
    return promoted(np.dtype("float32"), *dtypes)


def increment(count: jax.Array) -> jax.Array:
    """Returns `count + 1`, or the largest number of its dtype once that is reached."""
    next_count = count + cast(1, count.dtype)
    return jnp.where(count < jnp.iinfo(count.dtype).max, next_count, count)


def scaled_norm(x: jax.Array, least: jax.Array | float = 0) -> tuple[jax.Array, jax.Array]:
    """Returns the norm of all entries as `scale` and `root`, whose product it is.

    `root` is the norm of `x / scale`, at least `least / scale`, or 0 if every entry is 0.
    Unlike the norm itself it neither overflows nor underflows.
    """
    info = jnp.finfo(x.dtype)
    largest = lax.stop_gradient(jnp.max(jnp.abs(x), initial=0))
    # A power of two near the largest entry: to divide by it is exact.
    power = lax.reduce_precision(jnp.maximum(largest, least), int(info.nexp), 0)
    # `scale` and `1 / scale`, by which XLA multiplies, have to be normal numbers: CPUs
    # flush others to zero. As Python numbers these would be float32 with x64 off.
    smallest_power = cast(2.0 ** int(info.minexp), x.dtype)
    largest_power = cast(2.0 ** (int(info.maxexp) - 2), x.dtype)
    scale = lax.stop_gradient(jnp.clip(power, smallest_power, largest_power))
    squares = jnp.sum((x / scale) ** 2)
    # The root has no derivative at 0.
    is_zero = squares == 0
    root = jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, squares)))
    return scale, jnp.where(largest == 0, 0, jnp.maximum(root, least / scale))


def rounded_step(param: jax.Array, step: jax.Array, noise: Sequence[Scalar]) -> jax.Array:
    """Returns a step in the dtype of its param that moves the param by `step` on average.

    It is the difference of the float32 sum, rounded stochastically, to the param. The dtype
    represents it exactly where the sum is between half and twice the param; elsewhere the
    mean is off by up to `finfo(dtype).eps` of the step. The derivative is that of `step`.
    """
    if not rounds(param.dtype):
        return cast(step, param.dtype)
    wide_param = cast(param, jnp.float32)
    moved = cast(round_with(wide_param + step, param.dtype, noise), jnp.float32)
    correction = lax.stop_gradient(moved - wide_param - step)
    return cast(step + correction, param.dtype)


def one_minus_power(beta: Scalar, exponent: jax.Array) -> jax.Array:
    """Returns `1 - beta**exponent` to a few ulp: float32 keeps 4 digits of 1 - 0.999."""
    if isinstance(beta, (int, float)):
        if beta == 0:
            return jnp.ones_like(exponent)
        return -jnp.expm1(exponent * cast(math.log(beta), exponent.dtype))
    # An array may be 0, where the logarithm has no derivative.
    is_positive = beta > 0
    beta = cast(beta, exponent.dtype)
    log = jnp.log(jnp.where(is_positive, beta, 1))
    return jnp.where(is_positive, -jnp.expm1(exponent * log), 1 - beta**exponent)


@jax.custom_jvp
def sqrt(x: jax.Array) -> jax.Array:
    """Returns the square root, with a derivative of 0 rather than infinity at 0."""
    return jnp.sqrt(x)


@sqrt.defjvp
def _sqrt_jvp(primals, tangents):
    root = sqrt(*primals)
    is_positive = root > 0
    slope = 0.5 / jnp.where(is_positive, root, 1)
    return root, jnp.where(is_positive, slope, 0) * tangents[0]
