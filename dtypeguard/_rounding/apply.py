"""Adds updates to params without promoting them."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._leaves.arguments import is_subtree, shown
from .._leaves.casts import Casts
from .._leaves.dtypes import broadcasts, cast, dtype_of, kind, promoted
from .._leaves.public import public
from .._leaves.rows import Row, describe, table, tree_rows
from .._leaves.types import Leaf, Updates
from .rounding import Word, round_with, rounds

_T = TypeVar("_T")


@public
def apply_updates(params: _T, updates: Updates, *, key: jax.Array | None = None) -> _T:
    """Adds updates to params; each param keeps its dtype.

    It works like `optax.apply_updates`, in any promotion mode. Round-to-nearest loses an
    update below half the spacing at its param: in bfloat16, below 1/512 of the param. With
    a key, the sum is rounded stochastically if the param has fewer than 32 bits: the mean
    is then the float32 sum, which loses what a float32 param loses: an update below half
    the spacing of float32, at most 2**-24 of the param.

    Args:
        params: a tree of arrays.
        updates: their updates, of any floating dtype. float32 updates (see
            `Policy(updates_dtype=...)`) are not rounded before the sum. None, also for a
            whole subtree, or a float0 array does not change its param.
        key: a `jax.random` key, a new one at every step; None rounds to nearest. The noise
            does not depend on `jit`, `scan` or the number of devices.

    Returns:
        The new params, with the tree structure, shapes and dtypes of `params`.

    Raises:
        ValueError: if the trees differ.
        TypeError: if an update is not an array, is complex where its param is real, or
            would change the shape of its param; if `key` is not a single key.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp
        >>> params, updates = jnp.ones(1000, jnp.bfloat16), jnp.full(1000, 1e-3)
        >>> for key in (None, jax.random.key(0)):
        ...     moved = dtypeguard.apply_updates(params, updates, key=key)
        ...     print(f"{moved.astype(jnp.float32).mean():.3f}")
        1.000
        1.001
    """
    words = () if key is None else tuple(jax.random.bits(_checked(key), (2,), jnp.uint32))
    leaves, treedef = tree_util.tree_flatten(updates, is_leaf=lambda u: u is None)
    try:
        own = treedef.flatten_up_to(params)
    except ValueError:
        own = None
    if own is None or any(is_subtree(p) and u is not None for p, u in zip(own, leaves)):
        rows = tree_rows("updates", params, updates, "give one for each param, or None")
        headline = "apply_updates got updates in another tree than the params:"
        raise ValueError(table(headline, rows))
    _refuse(updates, own, leaves)
    added, casts = [], Casts("apply_updates", "params", lambda: _paths(updates))
    for number, (param, update) in enumerate(zip(own, leaves)):
        with casts.of(number, param, update):
            added.append(_add(param, update, words and (*words, number)))
    return tree_util.tree_unflatten(treedef, added)


def _refuse(updates: Updates, params: list[Leaf], leaves: list[Leaf]) -> None:
    """Raises `TypeError` if an update does not fit its param; names every such update."""
    remedies = ["" if p is None else _remedy(p, u) for p, u in zip(params, leaves)]
    if any(remedies):
        rows = [
            Row(f"updates{path}", describe(p), describe(u), remedy)
            for path, p, u, remedy in zip(_paths(updates), params, leaves, remedies)
            if remedy
        ]
        headline = (
            "apply_updates cannot add the update on the right to the param on the left:"
        )
        raise TypeError(table(headline, rows))


def _paths(updates: Updates) -> list[str]:
    """The paths of updates, of which some may be None."""
    named = tree_util.tree_flatten_with_path(updates, is_leaf=lambda u: u is None)[0]
    return [tree_util.keystr(path) for path, _ in named]


def _remedy(param: Leaf, update: Leaf) -> str:
    """What to write in place of an update that does not fit its param; "" if it fits."""
    if update is None or dtype_of(update) is None:
        leaves_it = update is None or hasattr(update, "dtype")  # a float0 array
        return "" if leaves_it else "give an array or None"
    if dtype_of(param) is None:
        return "give None"
    if not broadcasts(np.shape(update), np.shape(param)):
        return f"give it in shape {np.shape(param)}"
    if kind(dtype_of(update)) == "complex" and kind(dtype_of(param)) != "complex":
        return "give jnp.real(x)"
    return ""


def _checked(key: jax.Array) -> jax.Array:
    dtype = getattr(key, "dtype", None)
    is_typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if np.shape(key) != () if is_typed else dtype != np.uint32 or np.ndim(key) != 1:
        raise TypeError(
            f"apply_updates got key={shown(key)}. Write one new key for every step, "
            "such as key=jax.random.fold_in(jax.random.key(0), step)."
        )
    return key


def _add(param: Leaf, update: Leaf, words: tuple[Word, ...]) -> Leaf:
    """The sum in the dtype of the param, rounded stochastically if there are words."""
    if param is None or update is None or dtype_of(update) is None:
        return param
    param = jnp.asarray(param)
    stochastic = bool(words) and rounds(param.dtype)
    wide = promoted(param.dtype, dtype_of(update))
    if stochastic:
        wide = promoted(wide, jnp.dtype("float32"))
    total = cast(param, wide) + cast(update, wide)
    if stochastic:
        return round_with(total, param.dtype, words)
    return cast(total, param.dtype)
