"""What the corrected optimizers ask of params, gradients, state and learning rate."""

from collections.abc import Callable

import jax
import numpy as np
import optax
from jax import tree_util

from .._guard.x64 import call_with_x64_of_inputs
from .._leaves.arguments import check_leaves, check_number
from .._leaves.dtypes import cast, dtype_of, has_zero, kind
from .._leaves.types import DType, Function, Leaf, Params, Updates
from .._rounding.updates import fitting_leaves
from .._source.warn import warn_caller
from .arithmetic import Scalar

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def checked_update(name: str, step: Function) -> Function:
    """Returns an update that checks its arguments and hides the x64 flag from `step`.

    The step gets its params as strongly typed arrays.
    """

    def checked_step(updates, state, params):
        params = real_params(name, params)
        check_grads(name, updates, params)
        return step(updates, state, params)

    def update(updates, state, params=None, **extra_args):
        # Optax hands those of any transformation to all that it chains.
        del extra_args
        return call_with_x64_of_inputs(checked_step, warn_caller, updates, state, params)

    return update


def real_params(name: str, params: Params) -> Params:
    """Returns the params as strongly typed arrays; raises if one is no real float."""
    # Optax makes params optional for every optimizer; these read their norms and values.
    if params is None:
        raise ValueError(f"{name} needs the params: write update(updates, state, params).")
    remedy = (
        f"Complex params: optax.contrib.split_real_and_imaginary({name}(...)). "
        f"Others: optax.masked({name}(...), mask), or None in their place."
    )
    check_leaves(f"{name} moves floating point params", "params", params, _is_real, remedy)
    return tree_util.tree_map(strongly_typed, params)


def strongly_typed(leaf: Leaf) -> Leaf:
    """Returns a leaf as a strongly typed array; one without a dtype unchanged."""
    dtype = dtype_of(leaf)
    if dtype is None:
        return leaf
    return cast(leaf, dtype)


def _is_real(leaf: Leaf) -> bool:
    # float8_e8m0fnu has neither a zero nor a sign.
    dtype = dtype_of(leaf)
    return kind(dtype) == "float" and has_zero(dtype)


def rate_at(
    name: str,
    learning_rate: Scalar | optax.Schedule,
    count: jax.Array,
    dtype: DType,
) -> jax.Array:
    """Returns the learning rate of update number `count`, as a scalar of `dtype`."""
    rate = learning_rate
    if callable(learning_rate):
        rate = learning_rate(count)
        remedy = "return a number, such as 1e-3"
        check_number(name, "learning_rate(count)", rate, is_finite, remedy)
    return cast(rate, dtype)


def is_finite(number: float) -> bool:
    """Returns whether a number is finite in float32, in which optimizers compute."""
    return abs(number) <= _LARGEST_FLOAT32


def is_non_negative(number: float) -> bool:
    """Returns whether a number is at least 0, and finite in float32."""
    return 0 <= number <= _LARGEST_FLOAT32


def is_at_least_1(number: float) -> bool:
    """Returns whether a number is 1 or more; infinity is."""
    return number >= 1


def check_rate(
    owner: str,
    value: Leaf,
    is_allowed: Callable[[float], bool] = is_finite,
) -> None:
    """Checks that a learning rate is a scalar number or a schedule."""
    if not callable(value):
        remedy = "write a number, such as 1e-3, or a function of the number of updates"
        check_number(owner, "learning_rate", value, is_allowed, remedy)


def check_grads(owner: str, updates: Updates, params: Params) -> None:
    """Checks that gradients that are not None have the tree and shapes of the params."""
    fitting_leaves(owner, params, updates, _remedy_of_grad)


def _remedy_of_grad(param: Leaf, grad: Leaf) -> str:
    if grad is None or np.shape(grad) == np.shape(param):
        return ""
    return "give it in that shape"
