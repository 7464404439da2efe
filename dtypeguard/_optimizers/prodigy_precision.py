"""What Prodigy needs in low precision: units within range, and stochastic rounding."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from .._leaves.compat import barrier
from .._leaves.dtypes import cast
from .._leaves.types import DType, Leaf
from .._rounding.rounding import round_with, rounds
from .scalars import Scalar

Moments = tuple[Leaf, Leaf, Leaf]  # m, v and s of one param
Units = tuple[jax.Array, jax.Array]  # of m and sqrt(v), and of s


def units(dtype: DType, d: jax.Array, d0: jax.Array, beta3: jax.Array) -> Units | None:
    """The units in which the state holds the moments of a param of this dtype.

    None if the dtype has the range of float32. Float16 does not: at first `d * g` is about
    1e-6 and its square 1e-12, and `s` grows with `d**2`, but the smallest float16 is 6e-8
    and the largest 65504. So the state holds `m / d`, `sqrt(v) / d`, and `s` as an average
    in units of `d**2 / d0`. All three are about as large as the gradients.
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

    Round-to-nearest would never move an average with `beta2 = 0.999` in bfloat16: its
    changes are below half the spacing. XLA writes `m` and `v` over the old ones, which
    `update` reads, so `update` has to be computed first.
    """
    after = (update, update, None) if _needs_barrier(update.dtype) else (None, None, None)
    m, v, s = (
        round_with(value, jnp.result_type(before), (*noise, field), reader)
        for field, (value, before, reader) in enumerate(zip(new, old, after))
    )
    return m, v, s


def only_summed(*operands: jax.Array) -> Sequence[jax.Array]:
    """Gradient, param and initial param, for a sum that XLA fuses with their conversion.

    XLA does not fuse them if something else reads the converted operands as well.
    """
    return barrier(operands) if _needs_barrier(operands[1].dtype) else operands


def _needs_barrier(dtype: DType) -> bool:
    """Whether forcing XLA's order saves copies: in bfloat16.

    In float16 and 8-bit floats it costs time, since their rounding takes more operations.
    """
    return dtype == jnp.bfloat16


def rounded_step(param: jax.Array, step: jax.Array, noise: Sequence[Scalar]) -> jax.Array:
    """A step in the dtype of its param that moves the param by `step` on average.

    The float32 sum is rounded stochastically; what is returned is the difference to the
    param. With round-to-nearest, `p + u` loses every `u` below half the spacing at `p`,
    however often it is added.

    The mean is exact where the sum is between half and twice the param: the dtype then
    represents the difference exactly. Elsewhere, in a step that nearly cancels the param
    for example, the difference is rounded to nearest, and the mean is off by up to
    `finfo(dtype).eps` of the step.

    Params of 32 bits or more get `step` itself. The derivative is that of `step`.
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
