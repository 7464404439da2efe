"""The one way to split a tree: what it gives back, what it keeps alive."""

import jax
import jax.numpy as jnp
import optax
import pytest

from dtypeguard import guard, multi_steps, record

pytestmark = pytest.mark.third_party


def test_nothing_leaks_from_a_trace():
    params = {"w": jnp.ones(3)}
    with jax.checking_leaks():
        record(guard(optax.adam(1e-3)), params)
        opt = multi_steps(optax.sgd(0.1), 2)
        state = opt.init(params)
        for update in (opt.update, jax.jit(opt.update)):
            _, state = update(params, state, params)
