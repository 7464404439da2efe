"""Gradient accumulation that runs the inner optimizer only when it has something to do."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util

from .._guard.guard import guard, policy_of
from .._guard.policy import Policy, storable_dtype
from .._leaves.arguments import check_number, shown
from .._leaves.compat import add_x64, x64_enabled
from .._leaves.dtypes import cast, dtype_of, has_64_bits, kind, promoted
from .._leaves.key_path import path_texts
from .._leaves.types import DType, Leaf, Optimizer, Params, PyTree, Updates, public
from .._source.warn import WarnOnce
from .arithmetic import Scalar, increment
from .checked import check_grads, is_at_least_1, strongly_typed
from .emit import emit_if

_ShouldSkip = Callable[[Updates, jax.Array, Params], tuple[jax.Array, PyTree]]


@public
def multi_steps(
    inner: Optimizer,
    every_k_schedule: int | Callable[[jax.Array], Scalar],
    *,
    use_grad_mean: bool = True,
    should_skip_update_fn: _ShouldSkip | None = None,
    accumulator_dtype: DType = jnp.float32,
) -> optax.GradientTransformationExtraArgs:
    """Runs an optimizer once every k updates, on the mean of their gradients.

    This splits a large batch into pieces that fit into memory. `optax.MultiSteps` runs the
    inner update on every mini-step and discards all results but one. `multi_steps` runs it
    only on the mini-step that emits, in a branch that updates the inner state in place.
    The state must keep its types there, so `inner` is guarded. The numbers are those of
    `optax.MultiSteps`, and the state is an `optax.MultiStepsState`: either can load the
    other's checkpoints, and `optax.MultiSteps.has_updated` works. The differences are:

    - It is a transformation with extra args: it composes in `optax.chain` and passes on
      `value`, `grad` and `value_fn`. The inner update gets the extra args of the mini-step
      that emits; average them over the mini-steps yourself if you need their mean.
    - It adds 64-bit gradients in 64 bits, and warns if the accumulator rounds the sum.
    - If k shrinks during an accumulation, the new k takes effect at once.

    A gradient that is None counts as 0, provided that `update` gets the params: it may have
    come on other mini-steps. To keep a param as it is, put None in its place in the params,
    or `optax.masked` around `inner`.

    Under `jax.vmap` with a batched state, the inner update runs for all members if one of
    them emits, and each member gets its own result.

    Leaves of the inner state that are not arrays (strings, functions) stay as `init` made
    them, because a traced branch cannot change them.

    To let XLA update params and state in place, donate both, and return them in the order
    of the arguments: JAX pairs donated buffers with outputs in order.

    Args:
        inner: a gradient transformation, or anything that `guard` takes.
        every_k_schedule: the number of mini-steps in a gradient step, or a function of
            the number of gradient steps so far that returns it.
        use_grad_mean: passes on the mean of the gradients, by Welford's formula; if False,
            their sum.
        should_skip_update_fn: a function of the updates, the number of gradient steps and
            the params that returns a scalar bool and a tree for `skip_state`. If the bool
            is true, the mini-step does not count. `optax.skip_not_finite` skips gradients
            that contain infinities or NaNs. If every gradient is None, the function gets
            zeros.
        accumulator_dtype: the dtype of the accumulator; at least 64-bit for 64-bit params,
            and complex for complex params. None: the dtypes of the params.

    Returns:
        A guarded transformation. Between gradient steps its updates are negative zeros in
        the dtypes of the inner updates; adding them changes no bit of a param.

    Raises:
        ValueError: if k is below 1; by `init` and `update`, if `should_skip_update_fn` does
            not return a scalar bool and a tree.
        TypeError: if `guard` does not take `inner`, or another argument has the wrong type;
            by `update`, if the schedule of k does not return a scalar number.

    Example:
        >>> import dtypeguard, jax.numpy as jnp, optax
        >>> opt = dtypeguard.multi_steps(optax.sgd(1.0), 2)
        >>> state = opt.init(jnp.zeros(()))
        >>> for grad in (1.0, 3.0):
        ...     updates, state = opt.update(jnp.float32(grad), state)
        ...     print(updates, state.gradient_step)
        -0.0 0
        -2.0 1
    """
    # Both branches have to return the state in the same types.
    inner = guard(inner)
    _check_multi_steps_options(
        inner, every_k_schedule, should_skip_update_fn, accumulator_dtype
    )
    callers_x64 = x64_enabled()  # init runs with x64 off, where JAX has no float64
    policy = policy_of(inner)
    warn = WarnOnce()

    def init(params):
        zero = jnp.zeros((), jnp.int32)
        skip_state = ()
        if should_skip_update_fn is not None:
            zeros = tree_util.tree_map(jnp.zeros_like, params)
            returned = should_skip_update_fn(zeros, zero, params)
            _, skip_state = _read_skip_result(returned)
        return optax.MultiStepsState(
            mini_step=zero,
            gradient_step=zero,
            inner_opt_state=inner.init(params),
            acc_grads=_first_sums(params, accumulator_dtype, callers_x64),
            skip_state=skip_state,
        )

    def update(updates, state, params=None, **extra_args):
        # A checkpoint, or a state of optax's, may have Python numbers as counts. A loop
        # requires arrays of its carry.
        state = tree_util.tree_map(strongly_typed, state)
        check_grads("multi_steps", updates, state.acc_grads)
        gradient_step = state.gradient_step
        mini_step = increment(state.mini_step)
        emits = _is_last(mini_step, every_k_schedule, gradient_step)
        _warn_of_rounding(warn, state.acc_grads, updates)
        sums = _add_to(state.acc_grads, updates, mini_step, use_grad_mean)
        skip_state = state.skip_state
        if should_skip_update_fn is not None:
            judged = updates
            if not tree_util.tree_leaves(updates):
                # Without any gradient, Optax's functions return other types.
                judged = tree_util.tree_map(jnp.zeros_like, state.acc_grads)
            returned = should_skip_update_fn(judged, gradient_step, params)
            skips, skip_state = _read_skip_result(returned)
            # A skipped mini-step does not count.
            emits = ~skips & emits

            def unless_skipped(old, new):
                return jnp.where(skips, old, new)

            mini_step = unless_skipped(state.mini_step, mini_step)
            sums = tree_util.tree_map(unless_skipped, state.acc_grads, sums)

        def step(sums, inner_state):
            grads = _as_gradients(sums, updates, params, policy.compute_dtype)
            return inner.update(grads, inner_state, params, **extra_args)

        new_updates, sums, inner_state = emit_if(emits, step, sums, state.inner_opt_state)
        mini_step = jnp.where(emits, 0, mini_step)
        next_gradient_step = increment(gradient_step)
        gradient_step = jnp.where(emits, next_gradient_step, gradient_step)
        return new_updates, optax.MultiStepsState(
            mini_step=mini_step,
            gradient_step=gradient_step,
            inner_opt_state=inner_state,
            acc_grads=sums,
            skip_state=skip_state,
        )

    # Does not narrow the updates if the policy of the inner guard asks for wider ones.
    outer = Policy(updates_dtype=policy.updates_dtype)
    return guard(optax.GradientTransformationExtraArgs(init, update), policy=outer)


def _check_multi_steps_options(
    inner: Optimizer,
    every_k: Leaf,
    should_skip: object,
    accumulator: DType,
) -> None:
    if not callable(every_k):
        remedy = "write 1 or more, or a function of the number of gradient steps"
        check_number("multi_steps", "every_k_schedule", every_k, is_at_least_1, remedy)
    if not hasattr(inner, "init"):
        raise _wrong_type("inner", inner, "a call of it, as in optax.adam(1e-3)")
    if not (should_skip is None or callable(should_skip)):
        remedy = "a function, such as optax.skip_not_finite, or None"
        raise _wrong_type("should_skip_update_fn", should_skip, remedy)
    if not (accumulator is None or storable_dtype(accumulator) is not None):
        remedy = "a floating dtype, such as jnp.float32, or None for those of the params"
        raise _wrong_type("accumulator_dtype", accumulator, remedy)


def _wrong_type(name: str, value: object, remedy: str) -> TypeError:
    return TypeError(f"multi_steps got {name}={shown(value)}: write {remedy}.")


def _is_last(
    mini_step: jax.Array,
    every_k: int | Callable[[jax.Array], Scalar],
    gradient_step: jax.Array,
) -> bool | jax.Array:
    """Returns whether a mini-step, counted from 1, ends a gradient step."""
    if callable(every_k):
        k = every_k(gradient_step)
        name = "every_k_schedule(gradient_step)"
        check_number("multi_steps", name, k, is_at_least_1, "return a number from 1 up")
    elif not isinstance(every_k, jax.Array) and every_k == 1:
        return True  # known without a traced count: no branch is needed
    else:
        k = every_k
    # A schedule may return a float. The count exceeds k where k has shrunk.
    mini_step = cast(mini_step, dtype_of(k))
    return mini_step >= k


def _read_skip_result(returned: Any) -> tuple[jax.Array, PyTree]:
    """Returns whether to skip, as an array, and the new skip state.

    Raises a `ValueError` if the user's function returned anything else.
    """
    if isinstance(returned, (tuple, list)) and len(returned) == 2:
        skips, skip_state = returned
        if dtype_of(skips) == np.bool_ and jnp.shape(skips) == ():
            return cast(skips, np.bool_), skip_state
    raise ValueError(
        f"should_skip_update_fn returned {shown(returned)}. Return a scalar bool and a "
        "tree for skip_state, such as ()."
    )


def _first_sums(params: Params, accumulator_dtype: DType, x64: bool) -> PyTree:
    """Returns zeros for each param, of 64 bits also with x64 off if `x64`."""

    def zeros(param):
        dtype = _sum_dtype(param, accumulator_dtype)
        with add_x64(x64):
            if dtype_of(param) is None:  # a PRNG key has a shape, a function has none
                return jnp.zeros(getattr(param, "shape", ()), dtype)
            return jnp.zeros_like(param, dtype=dtype)  # with the sharding of param

    return tree_util.tree_map(zeros, params)


def _sum_dtype(param: Leaf, accumulator_dtype: DType) -> DType:
    """Returns the accumulator's dtype, complex or of 64 bits if the param is."""
    dtype = dtype_of(param)
    if accumulator_dtype is None:
        # A function or a key has a sum as well: trees without gaps are simpler to map.
        if dtype is None:
            return np.dtype("float32")
        return dtype
    accumulator_dtype = jnp.dtype(accumulator_dtype)
    is_wide = kind(dtype) == "float" and has_64_bits(param)
    if is_wide or kind(dtype) == "complex":
        return promoted(accumulator_dtype, dtype)
    return accumulator_dtype


def _warn_of_rounding(warn: WarnOnce, sums: PyTree, updates: Updates) -> None:
    """Warns of the first 64-bit gradient that an accumulator of fewer bits rounds."""
    sum_leaves, treedef = tree_util.tree_flatten(sums)
    for i, grad in enumerate(treedef.flatten_up_to(updates)):
        if has_64_bits(sum_leaves[i]) or not has_64_bits(grad):
            continue
        if kind(grad.dtype) == "int":
            continue
        paths = path_texts(sums, "updates")
        warn(
            f"multi_steps rounds the 64-bit gradients {paths[i]} to its accumulator: "
            "write accumulator_dtype=jnp.float64, or cast the gradients to 32 bits."
        )
        return


def _add_to(
    sums: PyTree,
    updates: Updates,
    count: jax.Array,
    use_grad_mean: bool,
) -> PyTree:
    """Adds a gradient to each sum or mean of `count`; None and float0 count as 0."""

    def add(acc, grad):
        if grad is None and kind(acc.dtype) in ("float", "complex"):
            grad = jnp.zeros_like(acc)
        grad_dtype = dtype_of(grad)
        if grad_dtype is None:
            return acc
        dtype = promoted(grad_dtype, acc.dtype)
        grad = cast(grad, dtype)
        old_sum = cast(acc, dtype)
        if use_grad_mean:
            # Welford's formula: the mean of n is that of n - 1, moved by 1 / n.
            grad -= old_sum
            grad /= cast(count, dtype)
        return cast(old_sum + grad, acc.dtype)

    return tree_util.tree_map(add, sums, updates)


def _as_gradients(
    sums: PyTree,
    updates: Updates,
    params: Params,
    compute_dtype: DType,
) -> Updates:
    """Returns the sums as gradients for the inner update, in the dtypes of the gradients.

    If the `compute_dtype` of the inner update is wider, they have that dtype: rounding a
    mean to bfloat16 would lose digits of the accumulator. A gradient that is None in this
    mini-step may have come in an earlier one, and has the dtype of its param.
    """

    def as_gradient(acc, grad, param=None):
        dtype = dtype_of(grad)
        # It may have come on other mini-steps, if its param can have a gradient.
        if grad is None and kind(dtype_of(param)) in ("float", "complex"):
            dtype = dtype_of(param)
        if dtype is None:
            return grad
        if compute_dtype is not None and kind(dtype) == "float":
            wide_dtype = jnp.dtype(compute_dtype)
            dtype = promoted(dtype, wide_dtype)
        return cast(acc, dtype)

    trees = [sums, updates]
    if params is not None:
        trees.append(params)
    return tree_util.tree_map(as_gradient, *trees)
