"""What the corrected optimizers ask of params, gradients, state and learning rate."""

import jax
import optax
from jax import tree_util

from .._guard.x64 import call_with_x64_of_inputs
from .._leaves.arguments import (
    check_grads,
    check_leaves,
    check_number,
    check_state,
    is_finite,
)
from .._leaves.dtypes import cast, dtype_of, has_zero, kind
from .._leaves.types import DType, Function, Leaf, Params, State
from .._source.warn import warn_caller
from .arithmetic import Scalar


def checked_update(name: str, state_type: type[State], step: Function) -> Function:
    """Returns an update that checks its arguments and hides the x64 flag from `step`.

    The step gets its params as strongly typed arrays.
    """

    def checked_step(updates, state, params):
        params = real_params(name, params)
        check_state(name, state, state_type, "init(params)")
        check_grads(name, updates, params)
        return step(updates, state, params)

    def update(updates, state, params=None, **extra_args):
        del extra_args
        return call_with_x64_of_inputs(checked_step, warn_caller, updates, state, params)

    return update


def real_params(name: str, params: Params) -> Params:
    """Returns the params as strongly typed arrays; raises if one is no real float."""
    if params is None:
        raise ValueError(f"{name} needs the params: write update(updates, state, params).")
    remedy = (
        f"Complex params: optax.contrib.split_real_and_imaginary({name}(...)). "
        f"Others: optax.masked({name}(...), mask), or None in their place."
    )
    check_leaves(f"{name} moves floating point params", "params", params, _is_real, remedy)
    return tree_util.tree_map(lambda leaf: cast(leaf, dtype_of(leaf)), params)


def _is_real(leaf: Leaf) -> bool:
    dtype = dtype_of(leaf)
    return kind(dtype) == "float" and has_zero(dtype)


def rate_at(
    name: str, learning_rate: Scalar | optax.Schedule, count: jax.Array, dtype: DType
) -> jax.Array:
    """Returns the learning rate of update number `count`, as a scalar of `dtype`."""
    if not callable(learning_rate):
        return cast(learning_rate, dtype)
    rate = learning_rate(count)
    remedy = "return a number, such as 1e-3"
    check_number(name, "learning_rate(count)", rate, is_finite, remedy)
    return cast(rate, dtype)
