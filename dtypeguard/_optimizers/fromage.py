"""Fromage, exact at any learning rate."""

import math
from numbers import Real
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import tree_util

from .._leaves.arguments import check_number
from .._leaves.dtypes import cast
from .._leaves.types import Params, public
from .arithmetic import Scalar, at_least_float32, increment, scaled_norm
from .checked import check_rate, checked_update, is_non_negative, rate_at, real_params


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
    check_number("fromage", "min_norm", min_norm, is_non_negative, remedy)
    # Without a bound, the state holds no norms.
    if isinstance(p_bound, Real) and p_bound == math.inf:
        p_bound = None
    if p_bound is not None:
        remedy += ", or math.inf for no bound"
        check_number("fromage", "p_bound", p_bound, is_non_negative, remedy)

    def init(params):
        params = real_params("fromage", params)

        def max_norm(param):
            dtype = at_least_float32(param)
            float32_param = cast(param, dtype)
            scale, root = scaled_norm(float32_param)
            return cast(p_bound, dtype) * scale * root

        max_norms = ()
        if p_bound is not None:
            max_norms = tree_util.tree_map(max_norm, params)
        return FromageState(count=jnp.zeros((), jnp.int32), max_norm=max_norms)

    def step(updates, state, params):
        rate_dtype = at_least_float32(params)
        rate = rate_at("fromage", learning_rate, state.count, rate_dtype)

        def update_of(param, grad, max_norm=None):
            if grad is None:
                return None
            dtype = at_least_float32(param)
            float32_param = cast(param, dtype)
            change = _fromage_step(
                float32_param,
                grad=cast(grad, dtype),
                rate=cast(rate, dtype),
                min_norm=cast(min_norm, dtype),
            )
            if max_norm is not None:
                max_norm = cast(max_norm, dtype)
                change = _bounded_change(float32_param, change, max_norm)
            return cast(change, param.dtype)

        trees = [params, updates]
        if p_bound is not None:
            trees.append(state.max_norm)
        new_updates = tree_util.tree_map(update_of, *trees)
        return new_updates, state._replace(count=increment(state.count))

    return optax.GradientTransformationExtraArgs(init, checked_update("fromage", step))


def _fromage_step(
    param: jax.Array,
    grad: jax.Array,
    rate: jax.Array,
    min_norm: jax.Array,
) -> jax.Array:
    """Returns the step of Algorithm 1 for one param, without the bound.

    It is `(p - rate * |p| / |g| * g) / root - p`, where `root` is `sqrt(1 + rate**2)`.
    """
    # The square of a large rate overflows.
    root = jnp.hypot(1, rate)
    # `1 / root - 1`, which would cancel at a small rate.
    shrink = -(rate / root)
    shrink *= rate / (1 + root)
    param_scale, param_root = scaled_norm(param, min_norm)
    grad_scale, grad_root = scaled_norm(grad, min_norm)
    # Where a norm is 0, the authors' code takes a step of `rate * g`.
    is_plain = (param_root == 0) | (grad_root == 0)
    param_scale = jnp.where(is_plain, 1, param_scale)
    param_root = jnp.where(is_plain, 1, param_root)
    grad_scale = jnp.where(is_plain, 1, grad_scale)
    grad_root = jnp.where(is_plain, 1, grad_root)
    # |p|, |g| and |p| / |g| may overflow. The factor of the direction does only if the
    # update does: the largest entry of the direction is near 1.
    factor = rate / root * param_scale
    factor *= param_root / grad_root
    direction = grad / grad_scale
    change = shrink * param
    change -= factor * direction
    return change


def _bounded_change(param: jax.Array, change: jax.Array, max_norm: jax.Array) -> jax.Array:
    """Returns the change, or one that scales `param + change` to a norm of `max_norm`."""
    scale, norm = scaled_norm(param + change)
    bound = max_norm / scale
    is_over = norm > bound
    norm = jnp.where(is_over, norm, 1)
    scaled = (bound - norm) / norm * param
    scaled += bound / norm * change
    return jnp.where(is_over, scaled, change)
