"""The moments of Prodigy: their units and their roundings in a state of few bits."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._leaves.compat import barrier
from .._leaves.dtypes import cast
from .._leaves.types import DType, Leaf
from .._rounding.rounding import round_with
from .arithmetic import Scalar, moving_average, sqrt


class Moments(NamedTuple):
    """The averages of one param, named as in the paper on Prodigy."""

    m: Leaf  # of d * g
    v: Leaf  # of (d * g)**2
    s: Leaf  # of the gradients, weighted by d**2


class Units(NamedTuple):
    """The units in which a state of few exponent bits holds moments."""

    of_m: jax.Array  # and of sqrt(v)
    of_s: jax.Array


def units_for(param: jax.Array, d: jax.Array, d0: jax.Array, beta3: Scalar) -> Units | None:
    """Returns the units for the moments of a param; None if it has the range of float32.

    In float16 the state holds `m / d`, `sqrt(v) / d`, and `s` as an average in units of
    `d**2 / d0`: all three are about as large as the gradients, where `d * g` is about 1e-6
    at first, and its square 1e-12.
    """
    info = jnp.finfo(param.dtype)
    if info.minexp <= jnp.finfo(jnp.float32).minexp:
        return None
    d = cast(d, jnp.float32)
    d0 = cast(d0, jnp.float32)
    d_squared = d / d0 * d  # the square alone may underflow
    weight = 1 - cast(beta3, jnp.float32)
    weight = jnp.maximum(weight, 1e-4)
    of_s = d_squared / weight
    return Units(of_m=d, of_s=of_s)


def read_moments(stored: Moments, units: Units | None, dtype: DType) -> Moments:
    """Returns the moments that the state holds, in a dtype to compute in."""
    m = cast(stored.m, dtype)
    v = cast(stored.v, dtype)
    s = cast(stored.s, dtype)
    if units is not None:
        m *= units.of_m
        v *= units.of_m
        v **= 2
        s *= units.of_s
    return Moments(m, v, s)


def next_moments(
    old: Moments,
    change: jax.Array,
    weighted_grad: jax.Array,
    decay_rates: Sequence[Scalar],
) -> Moments:
    """Returns the moments after a gradient; `change` is `d * g`."""
    beta1, beta2, numerator_decay = decay_rates
    # No factor of 1 - beta3: the estimate is a ratio, in which it cancels.
    s = cast(numerator_decay, change.dtype) * old.s
    return Moments(
        m=moving_average(beta1, old.m, change),
        v=moving_average(beta2, old.v, change**2),
        s=s + weighted_grad,
    )


def write_moments(
    new: Moments,
    old: Moments,
    units: Units | None,
    update: jax.Array,
    noise: Sequence[Scalar],
) -> Moments:
    """Returns what the state holds for new moments, rounded to the dtypes of the old ones.

    It rounds stochastically: round-to-nearest would lose most of a slow average.
    """
    m, v, s = new
    if units is not None:
        m /= units.of_m
        # Of `v` the state holds the root: the square would underflow.
        v = sqrt(v)
        v /= units.of_m
        s /= units.of_s
    # XLA writes `m` and `v` over the old ones. The update reads these, so it comes first.
    reader = None
    if _needs_barrier(update):
        reader = update
    m_noise = (*noise, 0)
    m_dtype = jnp.result_type(old.m)
    m = round_with(m, m_dtype, m_noise, reader)
    v_noise = (*noise, 1)
    v_dtype = jnp.result_type(old.v)
    v = round_with(v, v_dtype, v_noise, reader)
    s_noise = (*noise, 2)
    s_dtype = jnp.result_type(old.s)
    s = round_with(s, s_dtype, s_noise, None)
    return Moments(m, v, s)


def operands_of_sum(
    grad: jax.Array,
    param: jax.Array,
    first_param: jax.Array,
) -> Sequence[jax.Array]:
    """Returns the operands of a sum; in bfloat16 as arrays that nothing else reads.

    XLA then fuses their conversion to float32 into the sum, and writes no float32 copy.
    """
    operands = grad, param, first_param
    if _needs_barrier(param):
        return barrier(operands)
    return operands


def _needs_barrier(array: jax.Array) -> bool:
    # An order that is forced saves copies; with longer roundings it costs time.
    return array.dtype == jnp.bfloat16
