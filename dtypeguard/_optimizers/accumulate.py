"""What the gradients of several mini-steps are added up in."""

import contextlib
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._leaves.arguments import shown
from .._leaves.compat import set_x64
from .._leaves.dtypes import cast, dtype_of, is_wide, kind, promoted
from .._leaves.errors import WarnOnce
from .._leaves.types import DType, Leaf, Params, PyTree, Updates


def check_accumulator_dtype(asked: DType) -> None:
    """Refuses what is neither a floating or complex dtype nor None."""
    try:
        is_allowed = asked is None or kind(jnp.dtype(asked)) in ("float", "complex")
    except TypeError:
        is_allowed = False
    if not is_allowed:
        raise TypeError(
            f"multi_steps got accumulator_dtype={shown(asked)}: write a "
            "floating dtype, such as jnp.float32, or None for those of the params."
        )


def first_sums(params: Params, asked: DType, x64: bool) -> Any:
    """Zeros for each param, in the dtype asked for or a wider one, see `_sum_dtype`.

    Args:
        params: the params.
        asked: an `accumulator_dtype`.
        x64: whether to make arrays of 64 bits as under `jax_enable_x64`.
    """

    def zeros(param):
        dtype = _sum_dtype(param, asked)
        with set_x64(True) if x64 else contextlib.nullcontext():
            if dtype_of(param) is None:  # a PRNG key has a shape, a function has none
                return jnp.zeros(getattr(param, "shape", ()), dtype)
            return jnp.zeros_like(param, dtype=dtype)  # and sharded as it is

    return tree_util.tree_map(zeros, params)


def add_to(
    sums: PyTree, updates: Updates, number: Any, use_grad_mean: bool, warn: WarnOnce
) -> Any:
    """The sums with one more gradient each, or their means over `number` gradients.

    A gradient that is None, or the float0 of an integer param, leaves its sum alone.
    """

    def add(acc, grad):
        if dtype_of(grad) is None:
            return acc
        _warn_if_narrowed(grad, acc, warn)
        dtype = promoted(dtype_of(grad), acc.dtype)
        grad, wide = cast(grad, dtype), cast(acc, dtype)
        if use_grad_mean:
            grad = (grad - wide) / cast(number, dtype)
        return cast(wide + grad, acc.dtype)

    return tree_util.tree_map(add, sums, updates)


def as_gradients(sums: PyTree, updates: Updates, compute_dtype: Any) -> Any:
    """The sums as the inner update is to see them.

    That is in the dtypes of the gradients, which a model has learnt to expect, or in the
    wider one in which the inner update computes: rounded back to bfloat16, a mean would
    lose there what the accumulator kept. None and float0 stay.
    """

    def as_gradient(acc, grad):
        dtype = dtype_of(grad)
        if dtype is None:
            return grad
        if compute_dtype is not None and kind(dtype) == "float":
            dtype = promoted(dtype, jnp.dtype(compute_dtype))
        return cast(acc, dtype)

    return tree_util.tree_map(as_gradient, sums, updates)


def _sum_dtype(param: Leaf, asked: DType) -> Any:
    """The dtype asked for, or one of the kind of a param and of 64 bits if it has those."""
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
            f"keep them: multi_steps(..., accumulator_dtype=jnp.{dtype_of(grad)})."
        )
