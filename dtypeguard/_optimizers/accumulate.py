"""The accumulator, which sums or averages the gradients of several mini-steps."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._leaves.arguments import shown
from .._leaves.compat import add_x64
from .._leaves.dtypes import cast, dtype_of, has_zero, is_wide, kind, promoted
from .._leaves.rows import by_path
from .._leaves.types import DType, Leaf, Params, PyTree, Updates
from .._source.warn import WarnOnce


def check_accumulator_dtype(asked: DType) -> None:
    """Raises `TypeError` unless `asked` is None or a floating or complex dtype with a 0."""
    try:
        dtype = None if asked is None else jnp.dtype(asked)
    except TypeError:
        dtype = np.dtype(object)
    is_allowed = dtype is None or (kind(dtype) in ("float", "complex") and has_zero(dtype))
    if not is_allowed:
        raise TypeError(
            f"multi_steps got accumulator_dtype={shown(asked)}: write a "
            "floating dtype, such as jnp.float32, or None for those of the params."
        )


def first_sums(params: Params, asked: DType, x64: bool) -> PyTree:
    """Zeros for each param, in the dtype that `_sum_dtype` chooses.

    `asked` is the `accumulator_dtype`. With `x64`, it makes 64-bit arrays even if
    `jax_enable_x64` is off.
    """

    def zeros(param):
        dtype = _sum_dtype(param, asked)
        with add_x64(x64):
            if dtype_of(param) is None:  # a PRNG key has a shape, a function has none
                return jnp.zeros(getattr(param, "shape", ()), dtype)
            return jnp.zeros_like(param, dtype=dtype)  # with the sharding of param

    return tree_util.tree_map(zeros, params)


def add_to(
    sums: PyTree, updates: Updates, number: jax.Array, use_grad_mean: bool, warn: WarnOnce
) -> PyTree:
    """Adds one gradient to each sum, or to each mean, now over `number` gradients.

    A gradient that is None, or the float0 of an integer param, does not change its sum, and
    counts as 0 in a mean.
    """

    def add(acc, grad):
        if grad is None and use_grad_mean and kind(acc.dtype) in ("float", "complex"):
            return cast(acc - acc / cast(number, acc.dtype), acc.dtype)
        if dtype_of(grad) is None:
            return acc
        _warn_if_narrowed(grad, acc, warn)
        dtype = promoted(dtype_of(grad), acc.dtype)
        grad, wide = cast(grad, dtype), cast(acc, dtype)
        if use_grad_mean:
            grad = (grad - wide) / cast(number, dtype)
        return cast(wide + grad, acc.dtype)

    return tree_util.tree_map(add, sums, updates)


def as_gradients(
    sums: PyTree, updates: Updates, params: Params, compute_dtype: DType
) -> Updates:
    """The sums as gradients for the inner update.

    They have the dtypes of the gradients, or the `compute_dtype` of the inner update where
    that is wider: rounding a mean to bfloat16 would lose what the accumulator kept. One
    that is None now may have come before: it has the dtype of its param. Without params, or
    for an integer param, None comes back, and so does float0.
    """
    named, treedef = tree_util.tree_flatten_with_path(sums)
    grads = treedef.flatten_up_to(updates)
    held = by_path(params) if any(grad is None for grad in grads) else {}

    def as_gradient(path, acc, grad):
        of = held.get(tree_util.keystr(path)) if grad is None else grad
        dtype = dtype_of(of)
        if dtype is None or (grad is None and kind(dtype) not in ("float", "complex")):
            return grad
        if compute_dtype is not None and kind(dtype) == "float":
            dtype = promoted(dtype, jnp.dtype(compute_dtype))
        return cast(acc, dtype)

    triples = ((path, acc, grad) for (path, acc), grad in zip(named, grads))
    return treedef.unflatten(as_gradient(*each) for each in triples)


def _sum_dtype(param: Leaf, asked: DType) -> DType:
    """`asked`, made complex if the param is complex, and 64-bit if the param is."""
    dtype = dtype_of(param)
    if asked is None:
        return np.dtype("float32") if dtype is None else dtype
    asked = jnp.dtype(asked)
    if kind(dtype) not in ("float", "complex"):
        return asked
    if is_wide(param):
        return promoted(asked, dtype)
    return promoted(asked, np.dtype("complex64")) if kind(dtype) == "complex" else asked


def _warn_if_narrowed(grad: Leaf, acc: Leaf, warn: WarnOnce) -> None:
    if kind(dtype_of(grad)) in ("float", "complex") and is_wide(grad) and not is_wide(acc):
        warn(
            f"multi_steps adds {dtype_of(grad)} gradients to {acc.dtype} accumulators. To "
            "keep their precision: "
            f"multi_steps(..., accumulator_dtype=jnp.{dtype_of(grad)})."
        )
