"""Fromage as its authors run it, exact at any learning rate."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from .._guard.x64 import without_x64
from .._leaves.arguments import check_number, check_rate
from .._leaves.dtypes import cast
from .._leaves.errors import warn_caller
from .._leaves.public import public
from .scalars import (
    at_least_float32,
    checked_inputs,
    increment,
    rate_at,
    real_leaves,
    tree_of,
)

_Scalar = Any  # a Python or NumPy number or a 0-d array, maybe traced


@public
class FromageState(NamedTuple):
    """State of `fromage`.

    Attributes:
        count: updates so far, int32. Schedules see it.
        max_norm: the bound on the norm of each param, a scalar in float32, or float64 for
            a param that is; `()` without `p_bound`.
    """

    # The name that optax gives it, though every tuple has a method of that name.
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    max_norm: Any


@public
def fromage(
    learning_rate: _Scalar | optax.Schedule,
    min_norm: _Scalar = 0.0,
    *,
    p_bound: _Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Steps of a fixed size relative to each param's norm, exact at any learning rate.

    One step for the param `p` with the gradient `g`, by Frobenius norms of each tensor, is

        p = (p - lr * |p| / |g| * g) / sqrt(1 + lr**2)

    and the update is formed as `shrink * p - lr * |p| / |g| / sqrt(1 + lr**2) * g` with
    `shrink = 1 / sqrt(1 + lr**2) - 1`. It differs from `optax.fromage`:

    - `shrink` is computed as `-lr**2 / (root * (1 + root))`, `root = sqrt(1 + lr**2)`:
      right to a few ulp at any rate, where the difference with 1 cancels (in float32 it
      is 5% off at `lr=1e-3` and 0 from 3e-4 down, which optax meets with a schedule).
    - A param or gradient of norm 0 takes the plain step `-lr * g`, as in the authors'
      code, before the division. (Optax multiplies by `min_norm`: a param that starts at
      zero stays there.) `min_norm` bounds other norms from below and defaults to 0.
    - `p_bound`, which is in the authors' code and not in optax.

    Params narrower than float32 are computed with in float32, and only the update is
    rounded to their dtype. Norms neither overflow nor underflow. What `p + u` rounds off
    in a 16-bit param is lost: with bfloat16, changes of `p` by less than 1 in 512.

    Args:
        learning_rate: the relative size of a step, or a schedule of the number of updates.
            The authors recommend 0.01.
        min_norm: norms that are not 0 count as this at least.
        p_bound: keeps the norm of a param at or below `p_bound` times that which it had at
            `init`. A param that starts at zero stays there.

    Returns:
        The corresponding `optax.GradientTransformationExtraArgs`. The updates have the
        dtypes of the params. A param whose gradient is None is left alone.

    Raises:
        TypeError: if an argument is no number, or (by `init` and `update`) a param is not
            floating point.
        ValueError: if a bound is negative, or by `update`, without params or for updates
            in another tree or other shapes.

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
    remedy = "write a number from 0 up"
    check_number("fromage", "min_norm", min_norm, lambda x: x >= 0, remedy)
    if p_bound is not None:
        remedy += ", or None for no bound"
        check_number("fromage", "p_bound", p_bound, lambda x: x >= 0, remedy)

    def init(params):
        leaves, treedef = real_leaves(params, "fromage")

        def max_norm(p):
            scale, root = _norm(cast(p, at_least_float32(p)))
            return cast(p_bound, scale.dtype) * scale * root

        return FromageState(
            count=jnp.zeros((), jnp.int32),
            max_norm=() if p_bound is None else tree_of(treedef, max_norm, leaves),
        )

    def update(updates, state, params=None, **extra_args):
        del extra_args
        return without_x64(step, warn_caller, updates, state, params)

    def step(updates, state, params):
        leaves, treedef = checked_inputs("fromage", updates, state, params, FromageState)
        rate = rate_at(learning_rate, state.count, at_least_float32(*leaves))
        each = treedef.flatten_up_to
        max_norms = [None for _ in leaves] if p_bound is None else each(state.max_norm)

        def update_of(p, g, max_norm):
            if g is None:
                return None
            own = lambda value: cast(value, at_least_float32(p))
            u = _step(own(p), own(g), own(rate), own(min_norm))
            if max_norm is not None:
                u = _bounded(own(p), u, own(max_norm))
            return cast(u, p.dtype)

        new_updates = tree_of(treedef, update_of, leaves, each(updates), max_norms)
        return new_updates, state._replace(count=increment(state.count))

    return optax.GradientTransformationExtraArgs(init, update)


def _step(p: Any, g: Any, rate: Any, min_norm: Any) -> Any:
    root = jnp.sqrt(1 + rate**2)
    shrink = -(rate**2) / (root * (1 + root))
    scale_p, root_p = _norm(p)
    scale_g, root_g = _norm(g)
    plain = (root_p == 0) | (root_g == 0)
    scale_g = jnp.where(plain, 1, scale_g)
    # |p| / |g|, times scale_g: g / scale_g is at most 1, |p| / |g| may well overflow.
    ratio = jnp.maximum(scale_p * root_p, min_norm) / jnp.where(
        plain, 1, jnp.maximum(root_g, min_norm / scale_g)
    )
    return shrink * p - rate * jnp.where(plain, 1, ratio) / root * (g / scale_g)


def _bounded(p: Any, u: Any, max_norm: Any) -> Any:
    """The update that ends where `u` does, or on the way from there to 0 at `max_norm`."""
    scale, root = _norm(p + u)
    norm = scale * root
    over = norm > max_norm
    norm = jnp.where(over, norm, 1)
    return jnp.where(over, (max_norm - norm) / norm * p + max_norm / norm * u, u)


def _norm(x: Any) -> tuple[Any, Any]:
    """The Frobenius norm as `scale * root`.

    `root` is the norm of `x / scale`, whose largest entry is 1: its squares neither
    overflow nor underflow.

    The derivative is that of the norm; where the norm is 0, so is the derivative.
    """
    largest = lax.stop_gradient(jnp.max(jnp.abs(x), initial=0))
    scale = jnp.where(largest == 0, 1, largest)
    squares = jnp.sum((x / scale) ** 2)
    return scale, jnp.where(largest == 0, 0, jnp.sqrt(jnp.where(largest == 0, 1, squares)))
