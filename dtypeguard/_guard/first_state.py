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


def as_arrays(state: Any) -> Any:
    """A state whose Python and NumPy numbers are JAX arrays.

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
                f"state{tree_util.keystr(path)} is {short(leaf)}, which does not fit into "
                f"{dtype}: turn on jax_enable_x64, or have init return a smaller number."
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
