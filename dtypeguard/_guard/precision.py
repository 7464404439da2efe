"""Computes an optimizer's update in one dtype, and stores its state in another."""

import fnmatch
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util

from .._carry.split import Snapshot, map_data
from .._leaves.casts import Casts
from .._leaves.dtypes import (
    dtype_of,
    is_available,
    kind,
    widen_float,
)
from .._leaves.key_path import KeyPath, by_path, key_paths, path_text
from .._leaves.leaf_type import type_or_class
from .._leaves.types import DType, Function, Leaf, State, public
from .._rounding.rounding import Word, round_with
from .following import (
    Dtypes,
    cast_by_path,
    cast_following,
    dtypes_of_init,
    following_dtypes,
)
from .inputs import convert_extra_args
from .policy import (
    Policy,
    Unavailable,
    refuse_small_range,
)

# Scalars are hyperparameters, such as an injected learning rate: 0.999 is 1.0 in bfloat16.
_NARROWEST_SCALAR = jnp.dtype("float32")


@public
class RoundingState(NamedTuple):
    """The state of an optimizer guarded with `Policy(rounding="stochastic")`.

    The noise of a step depends only on `rounding_seed`, `rounding_step`, the number of the
    leaf in the inner state and the position of the element in the global array: it is the
    same in `jit`, in `scan`, on one device and on many. Members of a `vmap`, the shards
    inside a `shard_map`, and two guarded optimizers (in `multi_transform`, for example) get
    the same noise unless their seeds differ.

    Attributes:
        inner_state: the inner optimizer's own state. Training can continue with it without
            stochastic rounding.
        rounding_seed: uint32 scalar, `Policy.seed` at first; you may replace it.
        rounding_step: uint32 scalar, the number of updates so far.
    """

    inner_state: State
    rounding_seed: jax.Array
    rounding_step: jax.Array


def compute_and_store_in(
    inner: optax.GradientTransformationExtraArgs, policy: Policy
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation that computes and stores in the dtypes of a policy.

    Its updates, and what it rounds to nearest, are for `keep_dtypes` to cast back.
    """
    opt = inner
    if policy.compute_dtype is not None:
        opt = compute_in(opt, jnp.dtype(policy.compute_dtype))
    return store_state(opt, policy, init_in_own_dtypes=inner.init)


def compute_in(
    inner: optax.GradientTransformationExtraArgs, compute_dtype: DType
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation that gives `inner` its inputs in at least `compute_dtype`.

    These are the params, the updates and the floating extra args.
    """

    def widen(leaf):
        return widen_float(leaf, compute_dtype)

    def init(params):
        return inner.init(map_data(widen, params))

    def update(updates, state, params=None, **extra_args):
        return inner.update(
            map_data(widen, updates),
            state,
            map_data(widen, params),
            **convert_extra_args(extra_args, widen),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def store_state(
    inner: optax.GradientTransformationExtraArgs,
    policy: Policy,
    init_in_own_dtypes: Function,
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation that stores the state in narrower dtypes than it computes.

    `inner` sees the leaves that follow the params in `policy.compute_dtype`, or in float32
    if the policy has none, because b2 = 0.999 is 1.0 in bfloat16. `init` stores them in
    `policy.state_dtype`.

    With stochastic rounding, the state is a `RoundingState` around that of `inner`.

    Args:
        inner: computes in `policy.compute_dtype`, if the policy has one.
        policy: the policy of the guard.
        init_in_own_dtypes: an `init` that leaves the params in their own dtypes. It tells
            which leaves follow the params, and in which dtype `"params"` stores them.
    """
    is_stochastic = policy.rounding == "stochastic"
    compute_dtype = jnp.dtype("float32")
    if policy.compute_dtype is not None:
        compute_dtype = jnp.dtype(policy.compute_dtype)

    def init(params):
        state = inner.init(params)
        # `optax.tree_map_params` calls `init` with an object in place of the params.
        param_leaves = tree_util.tree_leaves(params)
        has_arrays = any(dtype_of(leaf) is not None for leaf in param_leaves)
        if policy.state_dtype is not None and has_arrays:
            # It may run here: an `init` that looks at values has just run anyway.
            following = following_dtypes(
                init_in_own_dtypes, params, compute_dtype, may_run=True
            )
            own_dtypes = {}
            if policy.state_dtype == "params":
                own_dtypes = dtypes_of_init(init_in_own_dtypes, params, may_run=True)
            floats = {
                path: leaf
                for path, leaf in by_path(state).items()
                if path in following and kind(dtype_of(leaf)) == "float"
            }
            dtypes = _stored_dtypes(policy.state_dtype, floats, own_dtypes)
            state = cast_by_path(state, dtypes)
        if not is_stochastic:
            return state
        return RoundingState(
            inner_state=state,
            rounding_seed=jnp.uint32(policy.seed),
            rounding_step=jnp.uint32(0),
        )

    def update(updates, state, params=None, **extra_args):
        _check_state_type(state, is_stochastic)
        stored_state = state.inner_state if is_stochastic else state
        params_or_updates = updates if params is None else params
        wide_state = cast_following(
            stored_state, init_in_own_dtypes, params_or_updates, compute_dtype
        )
        updates, new_state = inner.update(updates, wide_state, params, **extra_args)
        if not is_stochastic:
            return updates, new_state
        # The noise of the first update is that of step 1.
        step = state.rounding_step + 1
        words = (state.rounding_seed, step)
        rounded_state = _round_state(new_state, wide_state, stored_state, words)
        return updates, RoundingState(
            inner_state=rounded_state,
            rounding_seed=state.rounding_seed,
            rounding_step=step,
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _round_state(
    new_state: State, wide_state: State, stored_state: State, words: tuple[Word, Word]
) -> State:
    """Returns the new state with each leaf that was widened rounded at random.

    Args:
        new_state: what the optimizer returned for `wide_state`.
        wide_state: the state that the optimizer was given.
        stored_state: the state as it was stored.
        words: the seed and the step of the noise.
    """
    wide_leaves = by_path(wide_state)
    stored_leaves = by_path(stored_state)
    # The noise goes by the place in the stored state: an update may leave leaves out.
    numbers = dict(zip(stored_leaves, range(len(stored_leaves))))
    casts = Casts("guard", lambda: key_paths(new_state, "state"))
    rounded = []
    leaves = tree_util.tree_leaves(new_state)
    for i, (path, leaf) in enumerate(zip(key_paths(new_state), leaves)):
        dtype = dtype_of(stored_leaves.get(path))
        was_widened = dtype is not None and dtype != dtype_of(wide_leaves[path])
        # Anything but a float is for `keep_dtypes` to refuse.
        if was_widened and kind(dtype_of(leaf)) == "float":
            noise = (*words, numbers[path])
            with casts.of(i, leaf):
                leaf = round_with(leaf, dtype, noise)
        rounded.append(leaf)
    return Snapshot(new_state).with_leaves(rounded)


def _check_state_type(state: State, is_stochastic: bool) -> None:
    """Raises a `TypeError` for a state that another policy made."""
    has_rounding = isinstance(state, RoundingState)
    if has_rounding == is_stochastic:
        return
    if has_rounding:
        raise TypeError(
            'A policy without rounding="stochastic" got a RoundingState. Give it '
            "state.inner_state."
        )
    raise TypeError(
        f'Policy(rounding="stochastic") got a state of type {type(state).__name__}. '
        "Wrap a state made without it: opt.init(params)._replace(inner_state=state)."
    )


def _stored_dtypes(
    state_dtype: DType, leaves: Mapping[KeyPath, Leaf], own_dtypes: Dtypes
) -> Dtypes:
    """Returns the dtype to store each leaf in.

    Args:
        state_dtype: that of the policy.
        leaves: the leaves to which it applies, by path.
        own_dtypes: those that `"params"` stands for.
    """
    rule = {"*": state_dtype}
    if isinstance(state_dtype, Mapping):
        rule = state_dtype
    # "*" asks for all there is, which may be nothing: one policy serves many optimizers.
    idle_patterns = set(rule) - {"*"}
    dtypes = {}
    for path, leaf in leaves.items():
        dtype = dtype_of(leaf)
        for pattern in reversed(rule):  # the first that matches counts
            # Brackets are part of most paths. Only `*` and `?` have a meaning.
            glob = pattern.replace("[", "[[]")
            if fnmatch.fnmatchcase(path_text(path), glob):
                idle_patterns.discard(pattern)
                dtype = rule[pattern]
        if state_dtype == "params":
            dtype = own_dtypes.get(path) or dtype_of(leaf)
            # Of params in float16 it makes what a dtype alone would be refused for.
            refuse_small_range(dtype, option=state_dtype)
        # A scalar in 16 bits saves nothing, and a step count or a rate needs its digits.
        dtype = jnp.dtype(dtype)
        if np.ndim(leaf) == 0 and dtype.itemsize < _NARROWEST_SCALAR.itemsize:
            dtype = _NARROWEST_SCALAR
        if not is_available(dtype):
            raise Unavailable(
                f"state_dtype={dtype} for {path_text(path)} needs x64: store at most "
                "float32, or turn on jax_enable_x64."
            )
        dtypes[path] = dtype
    if idle_patterns:
        names = ", ".join(map(repr, sorted(idle_patterns)))
        lines = [f"state_dtype has patterns that match no leaf: {names}. Leaves to match:"]
        for path, leaf in leaves.items():
            lines.append(f"  {path_text(path)}  {type_or_class(leaf)}")
        raise ValueError("\n".join(lines))
    return dtypes
