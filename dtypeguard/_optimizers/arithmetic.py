"""Arithmetic that the optimizers share: dtypes, norms, powers, rounded steps."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, tree_util

from .._leaves.dtypes import cast, dtype_of, promoted
from .._leaves.types import DType, PyTree
from .._rounding.rounding import round_with, rounds

# A number, or a 0-d array that may be traced.
Scalar = float | np.number | jax.Array


def at_least_float32(tree: PyTree) -> DType:
    """Returns the dtype to compute in: float64 if a leaf is float64, else float32."""
    dtypes = map(dtype_of, tree_util.tree_leaves(tree))
    return promoted(np.dtype("float32"), *dtypes)


# `count + 1`, which stays at the largest number of its dtype. Optax 0.2.4 renamed it.
_optax: Any = optax
increment: Callable[[jax.Array], jax.Array] = (
    getattr(_optax, "safe_increment", None) or _optax.safe_int32_increment
)


def moving_average(decay: Scalar, old: jax.Array, new: jax.Array) -> jax.Array:
    """Returns `decay * old + (1 - decay) * new`."""
    # 1 - decay is exact only before it is rounded.
    return cast(decay, new.dtype) * old + cast(1 - decay, new.dtype) * new


def scaled_norm(x: jax.Array, least: jax.Array | float = 0) -> tuple[jax.Array, jax.Array]:
    """Returns the norm of all entries as `scale` and `root`, whose product it is.

    `root` is the norm of `x / scale`, at least `least / scale`, or 0 if every entry is 0.
    Unlike the norm itself it neither overflows nor underflows.
    """
    info = jnp.finfo(x.dtype)
    largest = jnp.max(jnp.abs(x), initial=0)
    # A power of two near the largest entry: to divide by it is exact.
    power = jnp.maximum(largest, least)
    num_exponent_bits = int(info.nexp)
    power = lax.reduce_precision(power, num_exponent_bits, 0)
    # `scale` and `1 / scale`, by which XLA multiplies, have to be normal numbers: CPUs
    # flush others to zero.
    scale = jnp.clip(power, info.tiny, 1 / info.tiny)
    # The norm does not depend on the scale, which therefore needs no derivative.
    scale = lax.stop_gradient(scale)
    entries = x / scale
    root = sqrt(jnp.sum(entries**2))
    root = jnp.maximum(root, least / scale)
    root = jnp.where(largest == 0, 0, root)
    return scale, root


def rounded_step(param: jax.Array, step: jax.Array, noise: Sequence[Scalar]) -> jax.Array:
    """Returns a step in the dtype of its param that moves the param by `step` on average.

    It is the difference of the float32 sum, rounded stochastically, to the param. The dtype
    represents it exactly where the sum is between half and twice the param; elsewhere the
    mean is off by up to `finfo(dtype).eps` of the step. The derivative is that of `step`.
    """
    if not rounds(param.dtype):
        return cast(step, param.dtype)
    float32_param = cast(param, jnp.float32)
    moved = float32_param + step
    moved = round_with(moved, param.dtype, noise)
    rounded = cast(moved, jnp.float32)
    rounded -= float32_param
    return cast(rounded, param.dtype)


def one_minus_power(beta: Scalar, exponent: jax.Array) -> jax.Array:
    """Returns `1 - beta**exponent` to a few ulp: float32 keeps 4 digits of 1 - 0.999."""
    if isinstance(beta, (int, float)):
        if beta == 0:
            return jnp.ones_like(exponent)
        log = math.log(beta)
    else:
        beta = cast(beta, exponent.dtype)
        log = jnp.log(beta)
    log_of_power = exponent * cast(log, exponent.dtype)
    return -jnp.expm1(log_of_power)


@jax.custom_jvp
def sqrt(x: jax.Array) -> jax.Array:
    """Returns the square root, with a derivative of 0 rather than infinity at 0."""
    return jnp.sqrt(x)


@sqrt.defjvp
def _sqrt_jvp(primals, tangents):
    root = sqrt(*primals)
    is_positive = root > 0
    # Both sides of the second select are computed: an infinity times 0 would be NaN.
    slope = 0.5 / jnp.where(is_positive, root, 1)
    slope = jnp.where(is_positive, slope, 0)
    tangent = slope * tangents[0]
    return root, tangent
