"""Adds updates to params without promoting them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import tree_util

from ._dtypes import cast, dtype_of, kind, promoted
from ._rounding import round_with, rounds


def apply_updates(params: Any, updates: Any, *, key: jax.Array | None = None) -> Any:
    """Adds updates to params; each param keeps its dtype.

    As `optax.apply_updates`, under any promotion mode. A step smaller than half the
    spacing of a bfloat16 param is lost when the sum is rounded to nearest: below lr/2**9
    of the param, that is. Given a key, params of less than 32 bits are rounded up or down
    at random instead, such that the mean is the sum, and no step is lost.

    Args:
        params: a tree of arrays.
        updates: their updates, of any floating dtype: float32 ones (see
            `Policy(updates_dtype=...)`) lose nothing on the way. None, or a float0 array,
            leaves its param as it is.
        key: a `jax.random` key, a new one at every step; None rounds to nearest. The
            noise is the same in `jit`, `scan`, on one device or on many.

    Returns:
        The new params, in the tree, shapes and dtypes of `params`.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp
        >>> params, updates = jnp.ones(1000, jnp.bfloat16), jnp.full(1000, 1e-3)
        >>> for key in (None, jax.random.key(0)):
        ...     moved = dtypeguard.apply_updates(params, updates, key=key)
        ...     print(f"{moved.astype(jnp.float32).mean():.3f}")
        1.000
        1.001
    """
    words = () if key is None else tuple(jax.random.bits(key, (2,), jnp.uint32))
    leaves, treedef = tree_util.tree_flatten(updates, is_leaf=lambda u: u is None)
    pairs = enumerate(zip(treedef.flatten_up_to(params), leaves))
    added = [_add(p, u, words and (*words, number)) for number, (p, u) in pairs]
    return tree_util.tree_unflatten(treedef, added)


def _add(param: Any, update: Any, words: tuple[Any, ...]) -> Any:
    """Their sum in the dtype of the param; rounded stochastically if there are words."""
    if param is None or update is None or dtype_of(update) is None:
        return param
    param = jnp.asarray(param)
    stochastic = bool(words) and rounds(param.dtype)
    wide = _sum_dtype(param.dtype, dtype_of(update), stochastic)
    total = cast(param, wide) + cast(update, wide)
    if stochastic:
        return round_with(total, param.dtype, words)
    return cast(total, param.dtype)


def _sum_dtype(param: Any, update: Any, stochastic: bool) -> Any:
    if param == update and not stochastic:
        return param
    # 8-bit floats have no implicit promotion; float32 holds them all.
    is_8_bit = lambda dtype: kind(dtype) == "float" and dtype.itemsize == 1
    single = jnp.dtype("float32")
    dtypes = (single if is_8_bit(dtype) else dtype for dtype in (param, update))
    return promoted(*dtypes, *([single] * stochastic))
