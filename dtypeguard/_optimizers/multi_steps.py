"""Gradient accumulation that runs the inner optimizer only when it has something to do."""

from collections.abc import Callable
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util

from .._guard.guard import guard, policy_of
from .._guard.policy import Policy, storable
from .._leaves.arguments import check_grads, check_number, check_state, shown
from .._leaves.compat import add_x64, x64_enabled
from .._leaves.dtypes import cast, dtype_of, is_wide, kind, promoted
from .._leaves.key_path import by_path, path_text
from .._leaves.types import DType, Leaf, Optimizer, Params, PyTree, Updates, public
from .._source.warn import WarnOnce
from .arithmetic import Scalar, increment
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
    inner = guard(inner)
    _check_options(inner, every_k_schedule, should_skip_update_fn, accumulator_dtype)
    callers_x64 = x64_enabled()  # init runs with x64 off, where JAX has no float64
    policy, warn = policy_of(inner), WarnOnce()

    def init(params):
        zero = jnp.zeros((), jnp.int32)
        skip_state = ()
        if should_skip_update_fn is not None:
            zeros = tree_util.tree_map(jnp.zeros_like, params)
            _, skip_state = _skips(should_skip_update_fn(zeros, zero, params))
        return optax.MultiStepsState(
            mini_step=zero,
            gradient_step=zero,
            inner_opt_state=inner.init(params),
            acc_grads=_first_sums(params, accumulator_dtype, callers_x64),
            skip_state=skip_state,
        )

    def update(updates, state, params=None, **extra_args):
        check_state("multi_steps", state, optax.MultiStepsState, "init(params)")
        strong = lambda leaf: leaf if dtype_of(leaf) is None else cast(leaf, dtype_of(leaf))
        state = tree_util.tree_map(strong, state)  # as a loop requires of its carry
        mini_step, gradient_step, inner_state, acc_grads, skip_state = state
        check_grads("multi_steps", updates, acc_grads)
        number = increment(mini_step)
        emits = _is_last(number, every_k_schedule, gradient_step)
        _warn_of_rounding(warn, acc_grads, updates)
        sums = _add_to(acc_grads, updates, number, use_grad_mean)
        if should_skip_update_fn is not None:
            # Without any gradient, the types of what Optax's functions return are others.
            is_given = tree_util.tree_leaves(updates)
            asked = updates if is_given else tree_util.tree_map(jnp.zeros_like, acc_grads)
            skips, skip_state = _skips(should_skip_update_fn(asked, gradient_step, params))
            emits = ~skips & emits
            keep = lambda old, new: jnp.where(skips, old, new)
            number, sums = tree_util.tree_map(keep, (mini_step, acc_grads), (number, sums))

        def step(sums, inner_state):
            grads = _as_gradients(sums, updates, params, policy.compute_dtype)
            return inner.update(grads, inner_state, params, **extra_args)

        new_updates, sums, inner_state = emit_if(emits, step, sums, inner_state)
        return new_updates, optax.MultiStepsState(
            mini_step=jnp.where(emits, 0, number),
            gradient_step=jnp.where(emits, increment(gradient_step), gradient_step),
            inner_opt_state=inner_state,
            acc_grads=sums,
            skip_state=skip_state,
        )

    # Does not narrow the updates if the policy of the inner guard asks for wider ones.
    outer = Policy(updates_dtype=policy.updates_dtype)
    return guard(optax.GradientTransformationExtraArgs(init, update), policy=outer)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_options(
    inner: Optimizer, every_k: object, should_skip: object, accumulator: DType
) -> None:
    def check(is_right: bool, name: str, value: object, remedy: str) -> None:
        if not is_right:
            raise TypeError(f"multi_steps got {name}={shown(value)}: write {remedy}.")

    remedy = "an int from 1 up, or a function of the number of gradient steps"
    check(_is_int(every_k) or callable(every_k), "every_k_schedule", every_k, remedy)
    if _is_int(every_k) and every_k < 1:
        raise ValueError(f"multi_steps got every_k_schedule={every_k}: write 1 or more.")
    remedy = "a call of it, as in optax.adam(1e-3)"
    check(hasattr(inner, "init"), "inner", inner, remedy)
    remedy = "a function, such as optax.skip_not_finite, or None"
    may_skip = should_skip is None or callable(should_skip)
    check(may_skip, "should_skip_update_fn", should_skip, remedy)
    remedy = "a floating dtype, such as jnp.float32, or None for those of the params"
    is_floating = accumulator is None or storable(accumulator) is not None
    check(is_floating, "accumulator_dtype", accumulator, remedy)


def _is_last(
    number: jax.Array,
    every_k: int | Callable[[jax.Array], Scalar],
    gradient_step: jax.Array,
) -> bool | jax.Array:
    """Whether mini-step `number`, counted from 1, ends a gradient step."""
    if _is_int(every_k) and every_k == 1:
        return True
    k = every_k(gradient_step) if callable(every_k) else every_k
    if callable(every_k):
        name, remedy = "every_k_schedule(gradient_step)", "return a number from 1 up"
        check_number("multi_steps", name, k, lambda x: x >= 1, remedy)
    # A schedule may return a float. `number` exceeds k where k has shrunk.
    return cast(number, dtype_of(k)) >= k


def _skips(returned: object) -> tuple[jax.Array, PyTree]:
    """Whether to skip, as an array, and the new skip state."""
    is_pair = isinstance(returned, (tuple, list)) and len(returned) == 2
    pair: Any = returned if is_pair else (None, ())
    skips, skip_state = pair
    if dtype_of(skips) != np.bool_ or jnp.shape(skips) != ():
        raise ValueError(
            f"should_skip_update_fn returned {shown(returned)}. Return a scalar bool and a "
            "tree for skip_state, such as ()."
        )
    return cast(skips, np.bool_), skip_state


def _first_sums(params: Params, asked: DType, x64: bool) -> PyTree:
    """Zeros for each param; with `x64`, of 64 bits even if `jax_enable_x64` is off."""

    def zeros(param):
        dtype = _sum_dtype(param, asked)
        with add_x64(x64):
            if dtype_of(param) is None:  # a PRNG key has a shape, a function has none
                return jnp.zeros(getattr(param, "shape", ()), dtype)
            return jnp.zeros_like(param, dtype=dtype)  # with the sharding of param

    return tree_util.tree_map(zeros, params)


def _warn_of_rounding(warn: WarnOnce, sums: PyTree, updates: Updates) -> None:
    """Warns of 64-bit gradients that an accumulator of fewer bits rounds."""
    is_real = lambda grad: is_wide(grad) and kind(grad.dtype) != "int"
    rounds = lambda acc, grad: is_real(grad) and not is_wide(acc)
    rounded = tree_util.tree_map(rounds, sums, updates)
    if any(tree_util.tree_leaves(rounded)):  # paths are made for the warning alone
        paths = by_path(rounded, "updates").items()
        path = next(path_text(path) for path, is_rounded in paths if is_rounded)
        warn(
            f"multi_steps rounds the 64-bit gradients {path} to its accumulator: "
            "write accumulator_dtype=jnp.float64, or cast the gradients to 32 bits."
        )


def _add_to(
    sums: PyTree, updates: Updates, number: jax.Array, use_grad_mean: bool
) -> PyTree:
    """Adds a gradient to each sum or mean of `number`; None and float0 count as 0."""

    def add(acc, grad):
        if grad is None and use_grad_mean and kind(acc.dtype) in ("float", "complex"):
            return cast(acc - acc / cast(number, acc.dtype), acc.dtype)
        if dtype_of(grad) is None:
            return acc
        dtype = promoted(dtype_of(grad), acc.dtype)
        grad, wide = cast(grad, dtype), cast(acc, dtype)
        if use_grad_mean:
            grad = (grad - wide) / cast(number, dtype)
        return cast(wide + grad, acc.dtype)

    return tree_util.tree_map(add, sums, updates)


def _as_gradients(
    sums: PyTree, updates: Updates, params: Params, compute_dtype: DType
) -> Updates:
    """The sums as gradients for the inner update, in the dtypes of the gradients.

    Where its `compute_dtype` is wider, in that: rounding a mean to bfloat16 would lose what
    the accumulator kept. One that is None now may have come before, and has the dtype of
    its param.
    """
    named, treedef = tree_util.tree_flatten_with_path(sums)
    grads = treedef.flatten_up_to(updates)
    held = by_path(params) if any(grad is None for grad in grads) else {}

    def as_gradient(path, acc, grad):
        of = held.get(path) if grad is None else grad
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
    must_hold = kind(dtype) == "complex" or (kind(dtype) == "float" and is_wide(param))
    return promoted(jnp.dtype(asked), dtype) if must_hold else jnp.dtype(asked)
