"""Updates that rounding takes away, which the error of one step hardly shows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from dtypeguard import apply_updates, audit_precision
from tests.support.dtypes import BF16, F32
from tests.support.helpers import needs_numbers, normal

pytestmark = [pytest.mark.third_party, needs_numbers]
OPT = optax.adam(1e-4)
A, X = (normal(n, 16, 16, dtype=BF16) for n in range(2))
PARAMS = {"a": A / 4, "b": X[0]}


def loss(params, x):
    return jnp.mean((jnp.tanh(x @ params["a"]) @ params["b"] - 1).astype(F32) ** 2)


def step(params, state, x, apply=optax.apply_updates):
    updates, state = OPT.update(jax.grad(loss)(params, x), state, params)
    return apply(params, updates), state


def in_a_scan(params, state, x):
    turn = lambda carry, x: (step(*carry, x), None)
    return lax.scan(turn, (params, state), x[None])[0]


@pytest.mark.parametrize("f", [jax.jit(step), in_a_scan])
def test_the_share_of_the_params_that_do_not_move(f):
    args = PARAMS, OPT.init(PARAMS), X
    report, new = audit_precision(f, *args), f(*args)[0]
    for name in PARAMS:
        stays = np.mean(np.float32(new[name]) == np.float32(PARAMS[name]))
        assert report.outputs[f"[0]['{name}']"].unmoved == pytest.approx(stays, abs=0.02)
        assert stays > 0.5
    assert "Rounding takes the update away in" in str(report)
    assert "dtypeguard.apply_updates(params, updates, key=key)" in str(report)


def test_stochastic_rounding_and_wide_params_lose_none():
    apply = functools.partial(apply_updates, key=jax.random.PRNGKey(1))
    report = audit_precision(
        functools.partial(step, apply=apply), PARAMS, OPT.init(PARAMS), X
    )
    assert "takes the update away" not in str(report)
    params = jax.tree_util.tree_map(lambda leaf: leaf.astype(F32), PARAMS)
    report = audit_precision(step, params, OPT.init(params), X)
    assert max(x.unmoved or 0 for x in report.outputs.values()) < 0.01
    assert "takes the update away" not in str(report)


def test_an_update_is_lost_wherever_it_stands():
    step = lambda p, u, mask: jnp.where(mask, u + p, p)
    params = jnp.linspace(1, 2, 64).astype(BF16)
    report = audit_precision(step, params, jnp.full(64, 1e-4, BF16), jnp.ones(64, bool))
    assert report.outputs[""].unmoved == 1.0
