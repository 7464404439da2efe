"""Guard inside and outside of Optax's own wrappers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_same, in_optax, types
from jax import lax, tree_util

from dtypeguard import Policy, guard, record, restore

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32

adam = lambda: optax.adam(1e-1)
is_matrix = lambda tree: tree_util.tree_map(lambda leaf: leaf.ndim > 1, tree)
labels = lambda tree: tree_util.tree_map(lambda leaf: "ab"[leaf.ndim > 1], tree)
partition = getattr(optax, "partition", None) or optax.multi_transform

WRAPPERS = {
    "masked": lambda opt: optax.masked(opt, is_matrix),
    "partition": lambda opt: partition({"a": opt, "b": optax.sgd(0.1)}, labels),
    "apply_if_finite": lambda opt: optax.apply_if_finite(opt, 3),
    "chain": lambda opt: optax.chain(optax.clip(1.0), opt),
    "named_chain": lambda opt: optax.named_chain(("clip", optax.clip(1.0)), ("opt", opt)),
    "flatten": lambda opt: optax.flatten(opt),
    "MultiSteps": lambda opt: optax.MultiSteps(opt, 2),
    "inject_hyperparams": lambda opt: optax.inject_hyperparams(lambda scale: opt)(
        scale=1.0
    ),
    "ema": lambda opt: optax.chain(opt, optax.ema(0.9)),
}


def train(opt, dtypes=(F32, F32), steps=4):
    """(params, state) after a scan; gradients of a quadratic in the second dtype."""
    params = {"w": jnp.ones((4, 3), dtypes[0]), "b": jnp.ones(3, dtypes[0])}

    def step(carry, _):
        params, state = carry
        grads = tree_util.tree_map(lambda p: p.astype(dtypes[1]), params)
        updates, state = opt.update(grads, state, params)
        add = lambda p, u: p + u
        return (tree_util.tree_map(add, params, updates), state), None

    return lax.scan(step, (params, opt.init(params)), None, length=steps)[0]


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_both_orders(wrapper):
    bare = train(wrapper(adam()))
    assert_same(train(guard(wrapper(adam()))), bare)
    assert_same(train(wrapper(guard(adam()))), bare)
    assert_same(train(guard(wrapper(guard(adam())))), bare)


ALL_BF16 = Policy(compute_dtype=F32, state_dtype=BF16, rounding="stochastic", seed=7)


@pytest.mark.filterwarnings("ignore:update failed and was run in float")
@pytest.mark.parametrize(
    "wrapper",
    [
        pytest.param(wrapper, id=name, marks=[pytest.mark.exhaustive] * (number % 3 > 0))
        for number, (name, wrapper) in enumerate(WRAPPERS.items())
    ],
)
def test_a_policy_around_a_wrapper_keeps_types_and_restores(wrapper):
    opt = guard(wrapper(adam()), policy=ALL_BF16)
    params = {"w": jnp.ones((4, 3), BF16), "b": jnp.ones(3, BF16)}
    grads = tree_util.tree_map(lambda p: p.astype(F32), params)
    state = opt.init(params)
    _, new_state = jax.eval_shape(opt.update, grads, state, params)
    recorded = record(opt, params)
    assert types(new_state) == types(recorded) == types(state)
    saved = tree_util.tree_map(np.asarray, state)
    assert_same(restore(saved, recorded), state)


@pytest.mark.filterwarnings("ignore:update failed and was run in float")
@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_outside_with_mixed_dtypes(wrapper):
    with pytest.raises((TypeError, ValueError)):
        train(wrapper(adam()), (BF16, F32))
    params, _ = train(guard(wrapper(adam())), (BF16, F32))
    assert types(params) == {
        "w": ("bfloat16", False, (4, 3)),
        "b": ("bfloat16", False, (3,)),
    }
    assert np.all(np.asarray(params["w"], np.float32) < 1)


def test_inject_hyperparams_is_read_and_set():
    params = {"w": jnp.ones(3)}
    opt = guard(optax.inject_hyperparams(optax.adam)(learning_rate=0.5))
    state = opt.init(params)
    state.hyperparams["learning_rate"] = 0.25  # a Python float, as users write it
    updates, state = opt.update(params, state, params)
    np.testing.assert_allclose(updates["w"], -0.25, rtol=1e-6)
    if in_optax("tree_utils.tree_get"):
        assert optax.tree_utils.tree_get(state, "learning_rate") == 0.25
    assert isinstance(state.hyperparams["learning_rate"], jax.Array)


class Two(optax.GradientTransformationExtraArgs):
    """A subclass for users to ask for."""


@pytest.mark.parametrize("policy", [Policy(), Policy(compute_dtype=F32)], ids=str)
def test_a_subclass_of_init_and_update_keeps_its_type(policy):
    guarded = guard(Two(*optax.with_extra_args_support(optax.sgd(0.1))), policy=policy)
    assert type(guarded) is Two
    assert guard(guarded) is guarded
    params = jnp.ones(3, BF16)
    updates, _ = guarded.update(jnp.ones(3, F32), guarded.init(params), params)
    assert updates.dtype == BF16
