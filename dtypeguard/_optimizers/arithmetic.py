"""Arithmetic of the corrected optimizers: checked inputs, norms, units, roundings."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, tree_util

from .._leaves.arguments import (
    check_grads,
    check_leaves,
    check_number,
    check_state,
    is_finite,
)
from .._leaves.compat import barrier
from .._leaves.dtypes import cast, dtype_of, has_zero, kind, promoted
from .._leaves.types import DType, Leaf, Params, PyTree, State, Updates
from .._rounding.rounding import round_with, rounds

# A number, or a 0-d array that may be traced.
Scalar = float | np.number | jax.Array


def real_params(name: str, params: Params) -> Params:
    """The params as strongly typed arrays."""
    if params is None:
        raise ValueError(f"{name} needs the params: write update(updates, state, params).")
    is_real = lambda x: kind(dtype_of(x)) == "float" and has_zero(dtype_of(x))
    remedy = (
        f"Complex params: optax.contrib.split_real_and_imaginary({name}(...)). "
        f"Others: optax.masked({name}(...), mask), or None in their place."
    )
    check_leaves(f"{name} moves floating point params", "params", params, is_real, remedy)
    return tree_util.tree_map(lambda leaf: cast(leaf, dtype_of(leaf)), params)


def check_inputs(
    name: str, updates: Updates, state: State, params: Params, state_type: type[State]
) -> Params:
    """Checks the arguments of an update, and returns its `real_params`."""
    params = real_params(name, params)
    check_state(name, state, state_type, "init(params)")
    check_grads(name, updates, params)
    return params


def at_least_float32(tree: PyTree) -> DType:
    """The dtype to compute in: float64 if a leaf is float64, else float32."""
    return promoted(np.dtype("float32"), *map(dtype_of, tree_util.tree_leaves(tree)))


def rate_at(
    name: str, learning_rate: Scalar | optax.Schedule, count: jax.Array, dtype: DType
) -> jax.Array:
    """A learning rate, or what a schedule returns for `count`, as a scalar of `dtype`."""
    if not callable(learning_rate):
        return cast(learning_rate, dtype)
    rate = learning_rate(count)
    remedy = "return a number, such as 1e-3"
    check_number(name, "learning_rate(count)", rate, is_finite, remedy)
    return cast(rate, dtype)


def increment(count: jax.Array) -> jax.Array:
    """`count + 1` in the dtype of `count`; stays at the largest number of that dtype."""
    one = cast(1, count.dtype)
    return jnp.where(count < jnp.iinfo(count.dtype).max, count + one, count)


def scaled_norm(x: jax.Array, least: jax.Array | float = 0) -> tuple[jax.Array, jax.Array]:
    """The norm of all entries as `scale * root`, two scalars of the dtype of `x`.

    `root` is the norm of `x / scale`, at least `least / scale`, or 0 if every entry is 0.
    `scale` is a power of two near the largest entry, so dividing by it is exact, and normal
    like `1 / scale`, which XLA multiplies by: CPUs flush subnormal numbers to zero.
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


Moments = tuple[Leaf, Leaf, Leaf]  # m, v and s of one param
Units = tuple[jax.Array, jax.Array]  # of m and sqrt(v), and of s


def units(dtype: DType, d: jax.Array, d0: jax.Array, beta3: jax.Array) -> Units | None:
    """The units in which the state holds the moments of a param of this dtype.

    None if the dtype has the range of float32. In float16 the state holds `m / d`,
    `sqrt(v) / d`, and `s` as an average in units of `d**2 / d0`: all three are about as
    large as the gradients, where `d * g` is about 1e-6 at first, and its square 1e-12.
    """
    if jnp.finfo(dtype).minexp <= jnp.finfo(jnp.float32).minexp:
        return None
    return d, d / d0 * d / jnp.maximum(1 - beta3, 1e-4)  # d**2 may underflow


def from_units(units: Units | None, m: Leaf, v: Leaf, s: Leaf) -> Moments:
    """The moments, from what the state holds."""
    if units is None:
        return m, v, s
    d, unit_of_sum = units
    return m * d, (v * d) ** 2, s * unit_of_sum


def to_units(units: Units | None, m: Leaf, v: Leaf, s: Leaf) -> Moments:
    """The inverse of `from_units`."""
    if units is None:
        return m, v, s
    d, unit_of_sum = units
    return m / d, sqrt(v) / d, s / unit_of_sum


def narrowed(
    new: Moments, old: Moments, update: jax.Array, noise: Sequence[Scalar]
) -> Moments:
    """The new moments in the dtypes of the old ones, rounded stochastically.

    XLA writes `m` and `v` over the old ones, so `update`, which reads these, comes first.
    """
    after = (update, update, None) if _needs_barrier(update.dtype) else (None, None, None)
    m, v, s = (
        round_with(value, jnp.result_type(before), (*noise, field), reader)
        for field, (value, before, reader) in enumerate(zip(new, old, after))
    )
    return m, v, s


def only_summed(*operands: jax.Array) -> Sequence[jax.Array]:
    """Operands of a sum, whose conversion XLA fuses since nothing else reads it."""
    return barrier(operands) if _needs_barrier(operands[1].dtype) else operands


def _needs_barrier(dtype: DType) -> bool:
    """Whether forcing XLA's order saves copies; with longer roundings it costs time."""
    return dtype == jnp.bfloat16


def rounded_step(param: jax.Array, step: jax.Array, noise: Sequence[Scalar]) -> jax.Array:
    """A step in the dtype of its param that moves the param by `step` on average.

    It is the difference of the float32 sum, rounded stochastically, to the param. The dtype
    represents it exactly where the sum is between half and twice the param; elsewhere the
    mean is off by up to `finfo(dtype).eps` of the step. The derivative is that of `step`.
    """
    if not rounds(param.dtype):
        return cast(step, param.dtype)
    wide = cast(param, jnp.float32)
    there = cast(round_with(wide + step, param.dtype, noise), jnp.float32)
    return cast(step + lax.stop_gradient(there - wide - step), param.dtype)


def one_minus_power(beta: Scalar, exponent: jax.Array) -> jax.Array:
    """`1 - beta**exponent` to a few ulp; plain float32 keeps 4 digits of 1 - 0.999."""
    if isinstance(beta, (int, float)):
        if beta == 0:
            return jnp.ones_like(exponent)
        return -jnp.expm1(exponent * cast(math.log(beta), exponent.dtype))
    # An array may be 0, where the logarithm has no derivative.
    positive, beta = beta > 0, cast(beta, exponent.dtype)
    log = jnp.log(jnp.where(positive, beta, 1))
    return jnp.where(positive, -jnp.expm1(exponent * log), 1 - beta**exponent)


@jax.custom_jvp
def sqrt(x: jax.Array) -> jax.Array:
    """The square root, with a derivative of 0 rather than infinity at 0."""
    return jnp.sqrt(x)


@sqrt.defjvp
def _(primals, tangents):
    root = sqrt(*primals)
    is_positive = root > 0
    slope = 0.5 / jnp.where(is_positive, root, 1)
    return root, jnp.where(is_positive, slope, 0) * tangents[0]
