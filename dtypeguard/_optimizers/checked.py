"""What the corrected optimizers ask of params, gradients, state and learning rate."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax import tree_util

from .._guard.x64 import call_with_x64_of_inputs
from .._leaves.arguments import check_leaves, check_number, is_subtree
from .._leaves.dtypes import cast, dtype_of, has_zero, kind
from .._leaves.key_path import key_paths
from .._leaves.leaf_change import leaf_changes, tree_changes
from .._leaves.table import Table
from .._leaves.types import DType, Function, Leaf, Params, State, Updates
from .._source.warn import warn_caller
from .arithmetic import Scalar

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


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
    if not callable(learning_rate):
        return cast(learning_rate, dtype)
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


def check_state(owner: str, state: State, state_type: Any, init: str) -> None:
    """Checks that a state has the fields of its type: arguments may be out of order."""
    # By its fields: a checkpoint may come back as an object of another class.
    missing_fields = [name for name in state_type._fields if not hasattr(state, name)]
    if missing_fields:
        raise TypeError(
            f"{owner} got a state of type {type(state).__name__}, not "
            f"{state_type.__name__}. Write update(updates, state, params), with the state "
            f"of {init} or of the update before."
        )


def check_grads(owner: str, updates: Updates, params: Params) -> None:
    """Checks that gradients that are not None have the tree and shapes of the params."""
    try:
        treedef = tree_util.tree_structure(params)
        grads = treedef.flatten_up_to(updates)
        is_same_tree = not any(map(is_subtree, grads))
    except ValueError:
        grads = []
        is_same_tree = False
    if not is_same_tree:
        changes = tree_changes("updates", params, updates, "give one for each param")
        headline = f"{owner} got updates in another tree than the params:"
        table = Table(headline, changes)
        raise ValueError(str(table))
    leaves = tree_util.tree_leaves(params)
    remedies = []
    for param, grad in zip(leaves, grads):
        remedy = ""
        if grad is not None and np.shape(grad) != np.shape(param):
            remedy = "give it in that shape"
        remedies.append(remedy)
    if any(remedies):
        paths = key_paths(params, "updates")
        changes = leaf_changes(paths, leaves, grads, remedies)
        headline = f"{owner} got updates in other shapes than the params:"
        table = Table(headline, changes)
        raise ValueError(str(table))
