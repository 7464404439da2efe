"""Wraps a guarded optimizer to compute in one dtype and store the state in another."""

import fnmatch
from collections.abc import Callable, Collection
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._carry.split import Snapshot
from .._leaves.compat import has_float64
from .._leaves.dtypes import Casts, cast, dtype_of, is_wide_scalar, kind
from .._leaves.leaf_type import describe
from .._leaves.rows import by_path, paths
from .._leaves.types import Convert, DType, Function, Leaf, State, public
from .._rounding.rounding import round_with
from .attempts import (
    Dtypes,
    cast_by_path,
    cast_following,
    convert_extra_args,
    dtypes_of_init,
    followed,
)
from .policy import Policy, Unavailable, float_dtype, refuse_blanket
from .settle import settle_updates

# A cast of (leaf, dtype, number of the leaf).
_Narrow = Callable[[Leaf, DType, int], jax.Array]


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


def in_precision(
    init_inner: Function, update_inner: Function, policy: Policy
) -> tuple[Function, Function]:
    """Gives an optimizer its inputs in one dtype and stores its state in another."""
    stochastic = policy.rounding == "stochastic"
    computes = policy.compute_dtype is not None
    widen_state = _at_least(jnp.dtype(policy.compute_dtype if computes else "float32"))
    widen = widen_state if computes else lambda leaf: leaf

    def init(params):
        check_available(policy)
        state = init_inner(Snapshot(params).map(widen).copy())
        # Optax's `tree_map_params` gives an object in place of the params.
        has_arrays = any(dtype_of(leaf) for leaf in tree_util.tree_leaves(params))
        if policy.state_dtype is not None and has_arrays:
            own = lambda: dtypes_of_init(init_inner, params, may_run=True)
            following = followed(init_inner, params, _narrowest, widen_state, may_run=True)
            dtypes = stored_dtypes(policy.state_dtype, state, following, own)
            state = cast_by_path(state, dtypes)
        if not stochastic:
            return state
        return RoundingState(state, jnp.uint32(policy.seed), jnp.uint32(0))

    def update(updates, state, params=None, **extra_args):
        check_available(policy)  # before JAX warns of its own casts
        stored = _inner_state(state, stochastic)
        like_params = updates if params is None else params
        seen = cast_following(stored, init_inner, like_params, _narrowest, widen_state)

        wide_updates, wide_params = Snapshot((updates, params)).map(widen).copy()
        if computes:
            extra_args = convert_extra_args(extra_args, widen)
        new_updates, new_state = update_inner(wide_updates, seen, wide_params, extra_args)
        if computes:
            given = Snapshot(updates), Snapshot(params)
            new_updates = settle_updates(new_updates, *given, policy).tree
        if not stochastic:
            to_nearest = lambda leaf, dtype, _: cast(leaf, dtype)
            return new_updates, _store(new_state, seen, stored, to_nearest)
        # uint32 at first. A loader without it gives other integers, which stay so too.
        seed, step = (cast(x, dtype_of(x)) for x in state[1:])
        words = seed, step + step.dtype.type(1)
        at_random = lambda leaf, dtype, number: round_with(leaf, dtype, (*words, number))
        new_state = _store(new_state, seen, stored, at_random)
        return new_updates, RoundingState(new_state, *words)

    return init, update


def _at_least(dtype: DType) -> Convert:
    """A function that casts a narrower floating leaf to `dtype`, and no other leaf."""

    def widen(leaf):
        held = dtype_of(leaf)
        narrower = kind(held) == "float" and held.itemsize < dtype.itemsize
        return cast(leaf, dtype) if narrower else leaf

    return widen


def _narrowest(leaf: Leaf) -> Leaf:
    """A floating leaf in bfloat16, to compare with in `followed`."""
    return cast(leaf, jnp.dtype("bfloat16")) if kind(dtype_of(leaf)) == "float" else leaf


def _store(new_state: State, seen: State, stored: State, narrow: _Narrow) -> State:
    """The new state, with each leaf that was widened back in the dtype that stored it."""
    leaves = tree_util.tree_leaves(new_state)
    casts = Casts("guard", "state", lambda: paths(new_state))
    for i, (was_seen, old) in enumerate(zip(*map(tree_util.tree_leaves, (seen, stored)))):
        # A Python number has no dtype to store it in, not even under `jit`.
        is_number = not hasattr(old, "dtype") or is_wide_scalar(old)
        is_as_seen = is_number or dtype_of(was_seen) == dtype_of(old)
        if not is_as_seen and dtype_of(leaves[i]) is not None:
            with casts.of(i, leaves[i]):
                leaves[i] = narrow(leaves[i], dtype_of(old), i)
    return Snapshot(new_state).with_leaves(leaves)


def _inner_state(state: State, stochastic: bool) -> State:
    if isinstance(state, RoundingState) == stochastic:
        return state.inner_state if stochastic else state
    if not stochastic:
        raise TypeError(
            'A policy without rounding="stochastic" got a RoundingState. Give it '
            "state.inner_state."
        )
    raise TypeError(
        f'Policy(rounding="stochastic") got a state of type {type(state).__name__}. Wrap a '
        "state made without it: opt.init(params)._replace(inner_state=state)."
    )


def check_available(policy: Policy) -> None:
    """Raises `Unavailable` if a policy asks for float64 and JAX has none."""
    for name in ("compute_dtype", "updates_dtype"):
        if float_dtype(getattr(policy, name)) == np.float64 and not has_float64():
            raise Unavailable(
                f"Policy({name}=float64) needs x64: write {name}=jnp.float32, or turn on "
                "jax_enable_x64."
            )


def stored_dtypes(
    state_dtype: DType, state: State, following: Collection[str], own: Callable[[], Dtypes]
) -> Dtypes:
    """The dtype to store each floating leaf in whose path is `following`, by a policy."""
    leaves = {
        path: leaf
        for path, leaf in by_path(state).items()
        if path in following and kind(dtype_of(leaf)) == "float"
    }
    if state_dtype == "params":
        wanted = own()
    elif isinstance(state_dtype, dict):
        wanted = _by_pattern(state_dtype, leaves)
    else:
        wanted = dict.fromkeys(leaves, jnp.dtype(state_dtype))
    stored = {}
    for path, leaf in leaves.items():
        dtype = dtype_of(leaf) if wanted.get(path) is None else wanted[path]
        is_narrow_scalar = np.ndim(leaf) == 0 and dtype.itemsize < 4
        stored[path] = jnp.dtype("float32") if is_narrow_scalar else dtype
        if state_dtype == "params":
            refuse_blanket(stored[path], given=state_dtype)
        if stored[path] == np.float64 and not has_float64():
            raise Unavailable(
                f"state_dtype={stored[path]} for {path} needs x64: store at most float32, "
                "or turn on jax_enable_x64."
            )
    return stored


def _by_pattern(rule: Dtypes, leaves: dict[str, Leaf]) -> Dtypes:
    # Escape brackets: paths are full of them.
    matches = lambda path, p: fnmatch.fnmatchcase(path, p.replace("[", "[[]"))
    # "*" asks for all there is, which may be nothing: one policy serves many optimizers.
    idle = [p for p in rule if p != "*" and not any(matches(path, p) for path in leaves)]
    if idle:
        lines = [f"  {path}  {describe(leaf)}" for path, leaf in leaves.items()]
        none = "Take them out: no floating leaf of this state follows the params."
        remedy = "Take them out, or match these paths:" if lines else none
        raise ValueError(
            f"state_dtype has patterns that match no leaf: {', '.join(map(repr, idle))}. "
            + "\n".join([remedy, *lines])
        )
    first = lambda path: next((rule[p] for p in rule if matches(path, p)), None)
    return {path: float_dtype(first(path)) for path in leaves}
