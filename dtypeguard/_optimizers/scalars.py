"""What the corrected optimizers share: checks of their inputs, dtypes, rates, counters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, tree_util

from .._leaves.arguments import check_grads, check_number, check_state, is_finite
from .._leaves.dtypes import cast, dtype_of, has_zero, kind, promoted
from .._leaves.types import DType, Params, PyTree, State, Updates

# A number, or a 0-d array that may be traced.
Scalar = float | np.number | jax.Array


def real_params(name: str, params: Params) -> Params:
    """The params as strongly typed arrays."""
    if params is None:
        raise ValueError(f"{name} needs the params: write update(updates, state, params).")
    wrong = [
        f"  params{tree_util.keystr(path)}: {dtype_of(leaf) or type(leaf).__name__}\n"
        for path, leaf in tree_util.tree_flatten_with_path(params)[0]
        if kind(dtype_of(leaf)) != "float" or not has_zero(dtype_of(leaf))
    ]
    if wrong:
        raise TypeError(
            f"{name} moves floating point params; these are not:\n{''.join(wrong)}"
            f"Complex params: optax.contrib.split_real_and_imaginary({name}(...)). "
            f"Others: optax.masked({name}(...), mask), or None in their place."
        )
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
