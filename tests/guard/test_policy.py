"""Policies around whole models, inits that look at values, and kinds that stay."""

import jax
import jax.numpy as jnp
import optax
import pytest
from helpers import assert_same, types
from one_leaf import transformation, whole_model

from dtypeguard import Policy, guard

BF16, F16, F32, I32 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32
ALL_BF16 = Policy(compute_dtype=F32, state_dtype=BF16, rounding="stochastic")


# Optax 0.2.3 on JAX 0.4.31
@pytest.mark.filterwarnings("ignore:In a future release of JAX, flatten-up-to")
@pytest.mark.third_party
@pytest.mark.parametrize(
    "policy", [Policy(), ALL_BF16, Policy(state_dtype="params")], ids=str
)
def test_a_whole_equinox_model_as_params(policy):
    model, params, grads = whole_model()
    opt = guard(optax.adamw(1e-3), policy=policy)
    state = opt.init(params)
    expected, expected_state = opt.update(grads, state, params)
    updates, new_state = opt.update(grads, state, model)
    assert_same(updates, expected)
    assert_same(new_state, expected_state)


def by_value(params):
    """An init that looks at values: a bias correction where there is something to see."""
    if not bool(jnp.any(params["w"] != 0)):
        return {"sum": jnp.zeros(3, F32), "own": jnp.zeros(3, BF16)}
    zeros = jnp.zeros_like(params["w"])
    return {"sum": zeros, "own": jnp.zeros(3, F32)}


@pytest.mark.parametrize(
    ("policy", "stored", "jitted"),
    [
        (Policy(compute_dtype=F32), F32, True),
        (Policy(compute_dtype=F32, state_dtype="params"), BF16, False),
        (Policy(state_dtype=BF16, rounding="stochastic"), BF16, True),
        (Policy(rounding="stochastic"), BF16, False),
    ],
    ids=str,
)
def test_a_policy_around_an_init_that_looks_at_values(policy, stored, jitted):
    seen = []

    def update(updates, state, params=None):
        seen.append(state["sum"].dtype)
        add = lambda s, u: s + u.astype(s.dtype)
        return updates, state | {"sum": add(state["sum"], updates["w"])}

    params = {"w": jnp.ones(3, BF16)}
    opt = guard(transformation(update, by_value), policy=policy)
    state = opt.init(params)
    inner = getattr(state, "inner_state", state)
    assert (inner["sum"].dtype, inner["own"].dtype) == (stored, F32)
    update_fn = jax.jit(opt.update) if jitted else opt.update
    _, new_state = update_fn(params, state, params)
    assert types(new_state) == types(state)
    assert seen == [F32]
    assert getattr(new_state, "inner_state", new_state)["sum"][0] == 1


def test_updates_dtype_is_for_floats_alone():
    params = {"c": jnp.ones(2, jnp.complex64), "w": jnp.ones(2, BF16)}
    opt = guard(transformation(), policy=Policy(updates_dtype=F32))
    updates, _ = opt.update(params, (), params)
    assert [updates[name].dtype for name in "cw"] == [jnp.complex64, F32]
