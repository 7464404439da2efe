"""What the corrected optimizers have in common: their dtypes, rates and counters."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._leaves.arguments import check_grads, check_state
from .._leaves.dtypes import cast, dtype_of, kind, promoted
from .._leaves.types import DType, Params, State, Updates


def real_leaves(params: Params, name: str) -> tuple[list[Any], Any]:
    """The leaves of the params as arrays, strongly typed, and their tree.

    Raises:
        ValueError: if there are no params.
        TypeError: if a leaf is not an array of floating point numbers; names every one.
    """
    if params is None:
        raise ValueError(f"{name} needs the params: write update(updates, state, params).")
    leaves, treedef = tree_util.tree_flatten(params)
    if any(kind(dtype_of(leaf)) != "float" for leaf in leaves):
        wrong = [
            f"  params{tree_util.keystr(path)}: {dtype_of(leaf) or type(leaf).__name__}\n"
            for path, leaf in tree_util.tree_flatten_with_path(params)[0]
            if kind(dtype_of(leaf)) != "float"
        ]
        raise TypeError(
            f"{name} moves floating point params; these are not:\n{''.join(wrong)}"
            f"Complex params: optax.contrib.split_real_and_imaginary({name}(...)). "
            f"Others: optax.masked({name}(...), mask), or None in their place."
        )
    return [cast(leaf, dtype_of(leaf)) for leaf in leaves], treedef


def checked_inputs(
    name: str, updates: Updates, state: State, params: Params, state_type: Any
) -> tuple[list[Any], Any]:
    """As `real_leaves`, after a look at all that an update is given.

    Raises:
        ValueError: as well if the updates are in another tree or other shapes.
        TypeError: as well if the state is of another type.
    """
    leaves, treedef = real_leaves(params, name)
    check_state(name, state, state_type, "init(params)")
    check_grads(name, updates, params)
    return leaves, treedef


def at_least_float32(*leaves: Any) -> Any:
    """The dtype to compute in: float64 if one of the leaves is, else float32."""
    return promoted(np.dtype("float32"), *map(dtype_of, leaves))


def rate_at(learning_rate: Any, count: Any, dtype: DType) -> Any:
    """A learning rate, or what a schedule gives for `count`, as a scalar of `dtype`."""
    return cast(learning_rate(count) if callable(learning_rate) else learning_rate, dtype)


def increment(count: Any) -> Any:
    """`count + 1` in the dtype of `count`; the largest number there is stays as it is."""
    one = cast(1, count.dtype)
    return jnp.where(count < jnp.iinfo(count.dtype).max, count + one, count)


def tree_of(treedef: Any, function: Callable[..., Any], *leaves: list[Any]) -> Any:
    """A tree with what `function` makes of each leaf of one or more lists of leaves."""
    return tree_util.tree_unflatten(treedef, [function(*group) for group in zip(*leaves)])
