"""A first state for control flow and donation: arrays, each with a buffer of its own."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util
from jax.core import Tracer

from .._leaves.arguments import short
from .._leaves.dtypes import cast, dtype_of, kind
from .._leaves.public import public


@public
def strong(tree: Any) -> Any:
    """A first carry: numbers and arrays as strongly typed arrays with buffers of their own.

    It is to the carry of a step what `init` of a guarded optimizer is to its state. A
    first carry that holds `0.0`, or a weakly typed `jnp.zeros(3) * 2` of some package's
    reset, has other types than the second: a jitted step compiles twice for it. And one
    array that is two leaves, such as params that are the first average of themselves as
    well, cannot be donated.

    Args:
        tree: what is carried first. `None`, functions and strings stay.

    Returns:
        The tree with each Python or NumPy number and each array as a strongly typed JAX
        array, in the dtype that it has, or that JAX gives it. All are copies: `tree` can
        be used after they were donated.

    Raises:
        OverflowError: if an integer is beyond those that JAX has under the x64 flag as it
            is now.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp
        >>> params = {"w": jnp.ones(3, jnp.bfloat16)}
        >>> params, average, count = dtypeguard.strong((params, params, 0))
        >>> count.dtype, count.weak_type
        (dtype('int32'), False)
    """
    remedy = "turn on jax_enable_x64, or start from a smaller number"
    arrays = as_arrays(tree, "strong: tree", remedy)
    return own_buffers(arrays, tree_util.tree_leaves(tree))


def as_arrays(
    state: Any,
    where: str = "state",
    remedy: str = "turn on jax_enable_x64, or have init return a smaller number",
) -> Any:
    """A state whose Python and NumPy numbers are JAX arrays.

    Args:
        state: any tree.
        where: what it is called in a message.
        remedy: against a number that is too large.

    Raises:
        OverflowError: if an integer is beyond those that JAX has under the x64 flag as it
            is now.
    """

    def array(path, leaf):
        dtype = dtype_of(leaf)
        if dtype is None or hasattr(leaf, "weak_type"):
            return leaf
        if kind(dtype) == "int" and np.any(np.asarray(leaf).astype(dtype) != leaf):
            raise OverflowError(
                f"{where}{tree_util.keystr(path)} is {short(leaf)}, which does not fit "
                f"into {dtype}: {remedy}."
            )
        return jnp.array(leaf, dtype, copy=True)

    return tree_util.tree_map_with_path(array, state)


def own_buffers(state: Any, params: Sequence[Any]) -> Any:
    """A first state of strongly typed arrays, each with a buffer of its own.

    Args:
        state: what the inner `init` returned, without Python and NumPy numbers.
        params: the leaves of what it was called with.

    Returns:
        `state` with each array leaf as a strongly typed JAX array of its dtype, copied if
        it has up to four entries or is a PRNG key, or its buffer belongs to a leaf of
        `params` or to another leaf as well: XLA refuses to have one buffer donated twice.
    """
    seen = {_buffer(leaf) for leaf in params}

    def own(leaf):
        dtype = dtype_of(leaf)
        if dtype is None and not isinstance(leaf, jax.Array):
            return leaf
        # A hyperparameter or a key, maybe a raw one of two or four numbers, may be what
        # the optimizer holds for its next `init`.
        is_held = dtype is None or np.size(leaf) <= 4
        if is_held or _buffer(leaf) in seen:
            leaf = jnp.array(leaf, copy=True)
        seen.add(_buffer(leaf))
        return leaf if dtype is None else cast(leaf, dtype)

    return tree_util.tree_map(own, state)


def _buffer(leaf: Any) -> int:
    """What two leaves have in common if they share memory (traced: if they are one)."""
    if isinstance(leaf, np.ndarray):
        return leaf.ctypes.data
    if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
        try:
            return leaf.addressable_data(0).unsafe_buffer_pointer()
        except Exception:  # no shard in this process, or a platform without pointers
            return id(leaf)
    return id(leaf)
