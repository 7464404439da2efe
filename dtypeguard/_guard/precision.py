"""Computes an optimizer's update in one dtype, and stores its state in another."""

import fnmatch
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util

from .._carry.split import Snapshot, map_data
from .._leaves.casts import Casts
from .._leaves.compat import has_float64
from .._leaves.dtypes import (
    cast,
    cast_float,
    dtype_of,
    is_wide_scalar,
    kind,
    widen_float,
)
from .._leaves.key_path import key_paths
from .._leaves.leaf_type import describe
from .._leaves.rows import by_path
from .._leaves.types import DType, Function, Leaf, Params, State, public
from .._rounding.rounding import round_with
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
    changes_precision,
    float_dtype,
    refuse_blanket,
)
from .settle import settle_updates

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
    """Returns a transformation that computes and stores in the dtypes of a policy."""
    opt = inner
    if policy.compute_dtype is not None:
        opt = compute_in(opt, policy)
    return store_state(opt, policy, init_in_own_dtypes=inner.init)


def compute_in(
    inner: optax.GradientTransformationExtraArgs, policy: Policy
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation that gives `inner` its inputs in `policy.compute_dtype`.

    These are the params, the updates and the floating extra args. Wider ones stay wide.
    """
    compute_dtype = jnp.dtype(policy.compute_dtype)

    def widen(leaf):
        return widen_float(leaf, compute_dtype)

    def init(params):
        return inner.init(map_data(widen, params))

    def update(updates, state, params=None, **extra_args):
        new_updates, new_state = inner.update(
            map_data(widen, updates),
            state,
            map_data(widen, params),
            **convert_extra_args(extra_args, widen),
        )
        # `inner` returned them in the dtypes of the wide params.
        settled = settle_updates(new_updates, updates, params, policy)
        return settled.tree, new_state

    return optax.GradientTransformationExtraArgs(init, update)


def store_state(
    inner: optax.GradientTransformationExtraArgs,
    policy: Policy,
    init_in_own_dtypes: Function,
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation that stores the state in narrower dtypes than it computes.

    `inner` sees the leaves that follow the params in `policy.compute_dtype`, or in float32
    if the policy has none, because b2 = 0.999 is 1.0 in bfloat16. They are stored in
    `policy.state_dtype` by `init`, and by an update in the dtypes with which they came in.

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

    # A leaf follows the params if `init` makes another dtype of narrowed params than of
    # widened ones, whatever dtype the params have now.
    def narrow(leaf):
        return cast_float(leaf, jnp.dtype("bfloat16"))

    def widen(leaf):
        return widen_float(leaf, compute_dtype)

    def init(params):
        state = inner.init(params)
        if policy.state_dtype is not None and _has_arrays(params):
            # It may run here: an `init` that looks at values has just run anyway.
            following = following_dtypes(
                init_in_own_dtypes, params, narrow, widen, may_run=True
            )
            leaves = _floating_leaves(state, following)
            if policy.state_dtype == "params":
                wanted = dtypes_of_init(init_in_own_dtypes, params, may_run=True)
            else:
                wanted = _wanted_dtypes(policy.state_dtype, leaves)
            state = cast_by_path(state, _stored_dtypes(policy.state_dtype, leaves, wanted))
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
            stored_state, init_in_own_dtypes, params_or_updates, narrow, widen
        )
        updates, new_state = inner.update(updates, wide_state, params, **extra_args)
        if not is_stochastic:
            return updates, _narrow(new_state, wide_state, stored_state, _to_nearest)

        # uint32 at first. A loader that does not have it gives other integers.
        seed = cast(state.rounding_seed, dtype_of(state.rounding_seed))
        step = cast(state.rounding_step, dtype_of(state.rounding_step))
        new_step = step + step.dtype.type(1)

        def at_random(leaf, dtype, i):
            return round_with(leaf, dtype, (seed, new_step, i))

        return updates, RoundingState(
            inner_state=_narrow(new_state, wide_state, stored_state, at_random),
            rounding_seed=seed,
            rounding_step=new_step,
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _has_arrays(params: Params) -> bool:
    """Returns whether params are given; `optax.tree_map_params` gives an object instead."""
    return any(dtype_of(leaf) is not None for leaf in tree_util.tree_leaves(params))


def _floating_leaves(state: State, following: Dtypes) -> dict[str, Leaf]:
    """Returns the floating leaves of a state that follow the params, by path."""
    leaves = {}
    for path, leaf in by_path(state).items():
        if path in following and kind(dtype_of(leaf)) == "float":
            leaves[path] = leaf
    return leaves


def _to_nearest(leaf: Leaf, dtype: DType, i: int) -> jax.Array:
    del i
    return cast(leaf, dtype)


def _narrow(
    new_state: State,
    wide_state: State,
    stored_state: State,
    round_to: Callable[[Leaf, DType, int], jax.Array],
) -> State:
    """Returns the new state with each leaf that was widened in its stored dtype.

    Args:
        new_state: the new state, in the dtypes of `wide_state`.
        wide_state: the state that the optimizer was given.
        stored_state: the state as it was stored.
        round_to: casts a leaf to a dtype, given the number of the leaf as well.
    """
    leaves = tree_util.tree_leaves(new_state)
    wide_leaves = tree_util.tree_leaves(wide_state)
    stored_leaves = tree_util.tree_leaves(stored_state)
    casts = Casts("guard", lambda: key_paths(new_state, "state"))
    for i, (wide, stored) in enumerate(zip(wide_leaves, stored_leaves)):
        # A Python number has no dtype to store it in, not even under `jit`.
        is_number = not hasattr(stored, "dtype") or is_wide_scalar(stored)
        was_widened = not is_number and dtype_of(wide) != dtype_of(stored)
        if was_widened and dtype_of(leaves[i]) is not None:
            with casts.of(i, leaves[i]):
                leaves[i] = round_to(leaves[i], dtype_of(stored), i)
    return Snapshot(new_state).with_leaves(leaves)


def _check_state_type(state: State, is_stochastic: bool) -> None:
    """Raises a `TypeError` for a state that another policy made."""
    has_rounding = isinstance(state, RoundingState)
    if has_rounding and not is_stochastic:
        raise TypeError(
            'A policy without rounding="stochastic" got a RoundingState. Give it '
            "state.inner_state."
        )
    if is_stochastic and not has_rounding:
        raise TypeError(
            f'Policy(rounding="stochastic") got a state of type {type(state).__name__}. '
            "Wrap a state made without it: opt.init(params)._replace(inner_state=state)."
        )


def require_float64(
    inner: optax.GradientTransformationExtraArgs, policy: Policy
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation that raises where a policy asks for float64 in vain.

    JAX itself would compute in float32, with a warning about a cast of the guard's.
    """

    def init(params):
        if changes_precision(policy):  # else it is about updates alone
            _check_float64(policy)
        return inner.init(params)

    def update(updates, state, params=None, **extra_args):
        _check_float64(policy)
        return inner.update(updates, state, params, **extra_args)

    return optax.GradientTransformationExtraArgs(init, update)


def _check_float64(policy: Policy) -> None:
    for name in ("compute_dtype", "updates_dtype"):
        dtype = float_dtype(getattr(policy, name))
        if dtype == np.float64 and not has_float64():
            raise Unavailable(
                f"Policy({name}=float64) needs x64: write {name}=jnp.float32, or turn on "
                "jax_enable_x64."
            )


def _stored_dtypes(
    state_dtype: DType, leaves: Mapping[str, Leaf], wanted: Dtypes
) -> Dtypes:
    """Returns the dtype to store each leaf in: the wanted one where that is allowed.

    Args:
        state_dtype: that of the policy.
        leaves: the leaves to which it applies, by path.
        wanted: what it says of each leaf; nothing for those that stay as they are.
    """
    dtypes = {}
    for path, leaf in leaves.items():
        dtype = wanted.get(path)
        if dtype is None:
            dtype = dtype_of(leaf)
        if np.ndim(leaf) == 0 and dtype.itemsize < _NARROWEST_SCALAR.itemsize:
            dtype = _NARROWEST_SCALAR
        if state_dtype == "params":
            refuse_blanket(dtype, given=state_dtype)
        if dtype == np.float64 and not has_float64():
            raise Unavailable(
                f"state_dtype={dtype} for {path} needs x64: store at most float32, or "
                "turn on jax_enable_x64."
            )
        dtypes[path] = dtype
    return dtypes


def _wanted_dtypes(state_dtype: DType, leaves: Mapping[str, Leaf]) -> Dtypes:
    if isinstance(state_dtype, Mapping):
        return _dtypes_by_pattern(state_dtype, leaves)
    return {path: jnp.dtype(state_dtype) for path in leaves}


def _dtypes_by_pattern(rule: Mapping[str, DType], leaves: Mapping[str, Leaf]) -> Dtypes:
    """Returns the dtype of the first pattern that matches the path of each leaf."""
    dtypes = {}
    matching_patterns = set()
    for path in leaves:
        matches = [pattern for pattern in rule if _matches(path, pattern)]
        matching_patterns.update(matches)
        if matches:
            dtypes[path] = float_dtype(rule[matches[0]])
    # "*" asks for all there is, which may be nothing: one policy serves many optimizers.
    idle = [p for p in rule if p != "*" and p not in matching_patterns]
    if idle:
        raise ValueError(_message_of_idle_patterns(idle, leaves))
    return dtypes


def _matches(path: str, pattern: str) -> bool:
    # Brackets are part of most paths. Only `*` and `?` have a meaning.
    return fnmatch.fnmatchcase(path, pattern.replace("[", "[[]"))


def _message_of_idle_patterns(idle: list[str], leaves: Mapping[str, Leaf]) -> str:
    names = ", ".join(repr(pattern) for pattern in idle)
    message = f"state_dtype has patterns that match no leaf: {names}. "
    if not leaves:
        return message + "Take them out: no floating leaf of this state follows the params."
    lines = [f"  {path}  {describe(leaf)}" for path, leaf in leaves.items()]
    return "\n".join([message + "Take them out, or match these paths:", *lines])
