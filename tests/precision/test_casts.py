"""A rounding that dtypeguard does itself is told by the path of the leaf, with a remedy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from dtypeguard import Policy, apply_updates, audit_precision, guard, guard_step
from tests.support.dtypes import BF16, F32
from tests.support.helpers import needs_numbers, normal

pytestmark = [pytest.mark.third_party, needs_numbers]
IN_FLOAT32 = Policy(compute_dtype=F32)
X = normal(1, 16, 8, dtype=BF16)
PARAMS = {"w": normal(0, 8, 4, dtype=BF16)}


def grads_of(params):
    return jax.grad(lambda p: jnp.mean((X @ p["w"]) ** 2))(params)


def state_after(opt, steps=20):
    """A function that runs some updates of an optimizer on fixed params."""

    def run(params):
        def step(state, _):
            return opt.update(grads_of(params), state, params)[1], None

        return lax.scan(step, opt.init(params), None, steps)[0]

    return run


def trained(add, updates_dtype=None):
    """A function that trains some steps and adds the updates by `add`."""
    policy = Policy(compute_dtype=F32, updates_dtype=updates_dtype)
    opt = guard(optax.adam(1e-3), policy=policy)

    def run(params):
        def step(carry, key):
            params, state = carry
            updates, state = opt.update(grads_of(params), state, params)
            return (add(params, updates, key), state), None

        keys = jax.random.split(jax.random.key(0), 20)
        return lax.scan(step, (params, opt.init(params)), keys)[0][0]

    return run


def momentum():
    """A momentum that is computed in float32, and returned so."""

    def update(updates, state, params=None):
        add = lambda mu, g: 0.999 * mu.astype(F32) + g.astype(F32)
        state = jax.tree_util.tree_map(add, state, updates)
        return state, state

    zeros = lambda params: jax.tree_util.tree_map(jnp.zeros_like, params)
    return optax.GradientTransformation(zeros, update)


def test_a_guards_cast_of_a_state():
    report = audit_precision(state_after(guard(momentum()), 100), PARAMS)
    (loss,) = report.fix
    assert loss.cast == "guard's cast of state['w']"
    assert loss.place.endswith(f"test_casts.py:{loss.origin.line}, {loss.cast}")
    assert "opt.update(grads_of(params), state, params)" in loss.origin.code
    assert loss.place in str(report)
    assert "policy=dtypeguard.Policy(compute_dtype=jnp.float32)" in loss.remedy
    fixed = state_after(guard(momentum(), policy=IN_FLOAT32), 100)
    assert audit_precision(fixed, PARAMS, seconds=0).error < report.error / 5


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_policys_store(rounding):
    policy = Policy(compute_dtype=F32, state_dtype=BF16, rounding=rounding)
    report = audit_precision(state_after(guard(optax.trace(0.9), policy=policy)), PARAMS)
    assert report.fix[0].cast == "guard's cast of state.trace['w']"
    assert ("at random" in report.fix[0].remedy) is (rounding == "nearest")


def test_a_stochastic_sum_is_measured_and_its_remedy_helps():
    """Its bits hold no wide value, yet the params are not those of float32."""
    to_nearest = trained(lambda p, u, key: optax.apply_updates(p, u))
    bare = audit_precision(to_nearest, PARAMS)
    assert str(bare.fix[0].origin).startswith("optax/_src/update.py")
    assert "dtypeguard.apply_updates(params, updates, key=key)" in bare.fix[0].remedy
    at_random = trained(lambda p, u, key: apply_updates(p, u, key=key), F32)
    report = audit_precision(at_random, PARAMS)
    assert 0 < report.error < 0.6 * bare.error
    (loss,) = report.fix
    assert loss.cast == "apply_updates's cast of params['w']"
    assert loss.remedy.endswith("rounds: keep it in jnp.float32.")
    exact = to_nearest({"w": PARAMS["w"].astype(F32)})["w"]
    outputs = jax.jit(at_random)(PARAMS)["w"].astype(F32)
    off = np.linalg.norm(outputs - exact) / np.linalg.norm(outputs)
    assert report.error == pytest.approx(off, rel=0.3)


def test_a_step_that_casts_its_average_back():
    @guard_step
    def step(mean, x):
        mean = {"m": mean["m"].astype(F32), "n": mean["n"]}
        return {"m": 0.999 * mean["m"] + 0.001 * x, "n": mean["n"] + 1}, None

    run = lambda mean, xs: lax.scan(step, mean, xs)[0]
    mean = {"m": jnp.ones(3, BF16), "n": jnp.zeros((), jnp.int32)}
    (loss,) = audit_precision(run, mean, jnp.zeros((500, 3))).fix
    assert loss.cast == "guard_step's cast of mean['m']"
    assert "keep it in jnp.float32, or let it round at random" in loss.remedy


def test_lines_inside_an_optimizer_have_a_policy_for_a_remedy():
    bare = audit_precision(state_after(optax.scale_by_adam(), 300), PARAMS)
    assert bare.fix[0].constant == "0.999 -> 1"
    assert "policy=dtypeguard.Policy(compute_dtype=jnp.float32))" in bare.fix[0].remedy
    guarded = guard(optax.scale_by_adam(), policy=IN_FLOAT32)
    report = audit_precision(state_after(guarded, 300), PARAMS, seconds=0)
    assert report.error < 0.2 * bare.error


def test_parts_of_a_tree_are_lines():
    params = {f"w{n:02}": jnp.ones(2, BF16) for n in range(40)}
    updates = {name: jnp.full(2, 1e-3) for name in params}
    report = audit_precision(lambda p: apply_updates(p, updates), params)
    named = {loss.cast for loss in report.losses}
    assert named == {f"apply_updates's cast of params[{name!r}]" for name in params}
