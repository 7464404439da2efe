"""Runs an update that does not trace once more, in a wider dtype."""

import functools

import numpy as np
from jax import tree_util

from .._leaves.compat import HAS_X64_SCOPE, x64_enabled
from .._leaves.dtypes import cast, dtype_of, kind, promoted
from .._leaves.types import DType, ExtraArgs, Function, Params, PyTree, State, Updates
from .extra_args import convert_extra_args
from .follow import cast_following


def rescue(
    init: Function,
    update: Function,
    inputs: tuple[Updates, State, Params, ExtraArgs],
) -> tuple[DType, tuple[Updates, State]] | None:
    """Runs an update in the promoted dtype of its params and updates, at least float32.

    This helps optimizers whose control flow assumes float32, or one dtype for params and
    gradients.
    """
    # If x64 is on and cannot be hidden, the optimizer makes its scalars in float64.
    at_least = np.dtype("float32" if HAS_X64_SCOPE or not x64_enabled() else "float64")
    floats = _floating_dtypes(inputs)
    if len(floats) < 2 and not any(d.itemsize < at_least.itemsize for d in floats):
        return None
    updates, state, params, extra_args = inputs
    dtype = promoted(at_least, *_floating_dtypes((updates, params)))

    def promote(leaf):
        return cast(leaf, dtype) if kind(dtype_of(leaf)) == "float" else leaf

    widened = functools.partial(tree_util.tree_map, promote)
    like_params = updates if params is None else params
    try:
        # A guarded init makes float32 of a Python float; here, under x64, it is float64.
        as_is = lambda leaf: cast(leaf, np.float32) if type(leaf) is float else leaf
        state = cast_following(state, init, like_params, as_is, promote)
        extra_args = convert_extra_args(extra_args, promote)
        return dtype, update(widened(updates), state, widened(params), extra_args)
    except Exception:  # the first error tells the user more than any second one
        return None


def _floating_dtypes(tree: PyTree) -> set[DType]:
    dtypes = {dtype_of(leaf) for leaf in tree_util.tree_leaves(tree)}
    return {dtype for dtype in dtypes if kind(dtype) == "float"}
