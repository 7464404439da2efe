"""Fromage, exact at any learning rate."""

import math
from numbers import Real
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax, tree_util

from .._guard.x64 import call_with_x64_of_inputs
from .._leaves.arguments import check_number, check_rate, is_finite
from .._leaves.dtypes import cast
from .._leaves.types import Params, public
from .._source.warn import warn_caller
from .arithmetic import (
    Scalar,
    at_least_float32,
    check_inputs,
    increment,
    rate_at,
    real_params,
    scaled_norm,
)


@public
class FromageState(NamedTuple):
    """State of `fromage`.

    Attributes:
        count: number of updates, int32. Schedules depend on it.
        max_norm: the bound on the norm of each param: a float32 scalar, float64 for a
            float64 param; `()` without `p_bound`.
    """

    # Optax's name for it, although every tuple has a method of that name.
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    max_norm: Params


@public
def fromage(
    learning_rate: Scalar | optax.Schedule,
    min_norm: Scalar = 0.0,
    *,
    p_bound: Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Takes steps of a fixed size relative to each param's norm, at any learning rate.

    With the Frobenius norm of each tensor, one step of the param `p` with the gradient `g`
    is

        p = (p - lr * |p| / |g| * g) / sqrt(1 + lr**2)

    The update is `shrink * p - lr * |p| / |g| / sqrt(1 + lr**2) * g`, where
    `shrink = 1 / sqrt(1 + lr**2) - 1`. It differs from `optax.fromage`:

    - `shrink` is computed as `-(lr / root) * (lr / (1 + root))`, where `root` is
      `sqrt(1 + lr**2)` without the square of a large rate. This is accurate to a few ulp
      at any finite rate. The difference from 1 cancels: in float32 it is off by 5% at
      `lr=1e-3`, by a third or wholly at 3e-4, and it is 0 at 1e-4. (Optax 0.2.8 computes it
      in float32 if the learning rate is an array, as its own schedules return; for a Python
      number it is exact.)
    - If the norm of a param or of its gradient is 0, the step is `-lr * g` before the
      division, as in the authors' code. (Optax multiplies by `min_norm`: a param that
      starts at zero stays there.) `min_norm` bounds other norms from below; it is 0 by
      default, where Optax has 1e-6 and the authors have none.
    - `p_bound` is in the authors' code, but not in Optax.

    Arithmetic on params narrower than float32 is float32, and only the update is rounded
    to their dtype. Norms neither overflow nor underflow. What `p + u` rounds off in a
    16-bit param is lost: in bfloat16, changes of `p` by less than 1 in 512.

    Args:
        learning_rate: the relative size of a step, or a schedule of the number of updates.
            The authors recommend 0.01.
        min_norm: a lower bound on norms that are not 0.
        p_bound: bounds the norm of each param by `p_bound` times its norm at `init`. A
            param that starts at zero stays there. None and `math.inf` are no bound.

    Returns:
        The corresponding `optax.GradientTransformationExtraArgs`. The updates have the
        dtypes of the params. A param whose gradient is None does not move.

    Raises:
        TypeError: if an argument is not a number; by `init` and `update`, if a param is not
            floating point; by `update`, if the schedule does not return a number.
        ValueError: if a number is not finite in float32, or a bound is negative; by
            `update`, if there are no params, or if the updates have another tree structure
            or other shapes.

    Example:
        >>> import dtypeguard, jax.numpy as jnp
        >>> opt = dtypeguard.fromage(lambda count: 1e-4)
        >>> params = jnp.array([1.0, 0.0])
        >>> grads = jnp.zeros(2)
        >>> updates, state = opt.update(grads, opt.init(params), params)
        >>> f"{updates[0]:.1e}"
        '-5.0e-09'

    References:
        Bernstein, Vahdat, Yue and Liu, "On the distance between two neural networks and
        the stability of learning", 2020, https://arxiv.org/abs/2002.03432, Algorithm 1.
    """
    check_rate("fromage", learning_rate)
    remedy = "write a number from 0 to 3e38"
    is_bound = lambda x: x >= 0 and is_finite(x)
    check_number("fromage", "min_norm", min_norm, is_bound, remedy)
    if isinstance(p_bound, Real) and p_bound == math.inf:
        p_bound = None
    if p_bound is not None:
        remedy += ", or math.inf for no bound"
        check_number("fromage", "p_bound", p_bound, is_bound, remedy)

    def init(params):
        params = real_params("fromage", params)

        def max_norm(p):
            scale, root = scaled_norm(cast(p, at_least_float32(p)))
            return cast(p_bound, scale.dtype) * scale * root

        return FromageState(
            count=jnp.zeros((), jnp.int32),
            max_norm=() if p_bound is None else tree_util.tree_map(max_norm, params),
        )

    def update(updates, state, params=None, **extra_args):
        del extra_args
        return call_with_x64_of_inputs(step, warn_caller, updates, state, params)

    def step(updates, state, params):
        params = check_inputs("fromage", updates, state, params, FromageState)
        rate = rate_at("fromage", learning_rate, state.count, at_least_float32(params))

        def update_of(p, g, max_norm=None):
            if g is None:
                return None
            own = lambda value: cast(value, at_least_float32(p))
            u = _step(own(p), own(g), own(rate), own(min_norm))
            if max_norm is not None:
                u = _bounded(own(p), u, own(max_norm))
            return cast(u, p.dtype)

        max_norms = () if p_bound is None else (state.max_norm,)
        new_updates = tree_util.tree_map(update_of, params, updates, *max_norms)
        return new_updates, state._replace(count=increment(state.count))

    return optax.GradientTransformationExtraArgs(init, update)


def _step(p: jax.Array, g: jax.Array, rate: jax.Array, min_norm: jax.Array) -> jax.Array:
    """The update of one param, before the bound."""
    # The root of 1 + rate**2; the square of a large rate overflows.
    largest = lax.stop_gradient(jnp.maximum(1, jnp.abs(rate)))
    root = largest * jnp.sqrt((1 / largest) ** 2 + (rate / largest) ** 2)
    shrink = -(rate / root) * (rate / (1 + root))
    (scale_p, root_p), (scale_g, root_g) = (scaled_norm(x, min_norm) for x in (p, g))
    plain = (root_p == 0) | (root_g == 0)
    scale_p, scale_g, root_p, root_g = (
        jnp.where(plain, 1, x) for x in (scale_p, scale_g, root_p, root_g)
    )
    # |p|, |g| and |p| / |g| may overflow. The factor of g / scale_g does only if the update
    # does: the largest entry of g / scale_g is near 1.
    return shrink * p - rate / root * scale_p * (root_p / root_g) * (g / scale_g)


def _bounded(p: jax.Array, u: jax.Array, max_norm: jax.Array) -> jax.Array:
    """The update itself, or the one that scales `p + u` down to a norm of `max_norm`."""
    scale, norm = scaled_norm(p + u)
    bound = max_norm / scale
    over = norm > bound
    norm = jnp.where(over, norm, 1)
    return jnp.where(over, (bound - norm) / norm * p + bound / norm * u, u)
