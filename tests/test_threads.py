"""Threads with flags of their own, guards in guards, and optimizations in optimizations."""

import concurrent.futures
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_same, needs_x64_scope, set_x64, types
from jax import lax

from dtypeguard import guard

pytestmark = pytest.mark.third_party
F32 = jnp.float32


def quadratic(params):
    return jnp.sum((params["w"] - F32(0.25)) ** 2)


def train(opt, params, steps=3):
    def step(carry, _):
        params, state = carry
        value, grads = jax.value_and_grad(quadratic)(params)
        updates, state = opt.update(
            grads, state, params, value=value, grad=grads, value_fn=quadratic
        )
        return (optax.apply_updates(params, updates), state), None

    return lax.scan(step, (params, opt.init(params)), None, length=steps)[0]


@needs_x64_scope
def test_threads_keep_their_own_flags():
    """All at once, under both flags; each finds its flag as it left it."""
    opt = guard(
        optax.chain(optax.zero_nans(), optax.lbfgs(linesearch=None), optax.adam(0.1))
    )
    expected = train(opt, {"w": jnp.linspace(0, 1, 4, dtype=F32)})
    start = threading.Barrier(8)

    def work(number):
        x64 = bool(number % 2)
        with set_x64(x64), jax.numpy_dtype_promotion("standard"):
            start.wait()
            results = []
            for _ in range(3):
                # A new optimizer each time, so that each thread traces for itself.
                fresh = guard(
                    optax.chain(
                        optax.zero_nans(), optax.lbfgs(linesearch=None), optax.adam(0.1)
                    )
                )
                results.append(train(fresh, {"w": jnp.linspace(0, 1, 4, dtype=F32)}))
                assert jax.config.jax_enable_x64 == x64
            return results

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for results in pool.map(work, range(8)):
            for result in results:
                assert_same(result, expected)


@needs_x64_scope
def test_a_value_fn_that_runs_a_guarded_optimization():
    """The outer line search calls a function that trains with a guard of its own."""
    flags = []

    def inner_loss(params):
        flags.append(jax.config.jax_enable_x64)
        tuned, _ = train(guard(optax.adam(0.1)), params, steps=2)
        flags.append(jax.config.jax_enable_x64)
        return quadratic(tuned)

    def outer(opt, params):
        value, grads = jax.value_and_grad(inner_loss)(params)
        state = opt.init(params)
        updates, state = opt.update(
            grads, state, params, value=value, grad=grads, value_fn=inner_loss
        )
        return optax.apply_updates(params, updates), state

    results = []
    for x64 in (False, True):
        flags.clear()
        with set_x64(x64):
            opt = guard(
                optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(5))
            )
            params = {"w": jnp.linspace(0, 1, 4, dtype=F32)}
            results.append(outer(opt, params))
            assert jax.config.jax_enable_x64 == x64
        assert set(flags) == {x64}
    assert types(results[0]) == types(results[1])
    assert_same(*results)


def test_an_error_in_a_callable_restores_the_flag():
    def value_fn(params):
        raise RuntimeError("mine")

    opt = guard(optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(5)))
    params = {"w": jnp.ones(3, F32)}
    for x64 in (False, True):
        with set_x64(x64):
            state = opt.init(params)
            with pytest.raises(RuntimeError, match="mine"):
                opt.update(
                    params,
                    state,
                    params,
                    value=jnp.ones((), F32),
                    grad=params,
                    value_fn=value_fn,
                )
            assert jax.config.jax_enable_x64 == x64


def test_guards_in_guards_change_nothing():
    params = {"w": jnp.linspace(0, 1, 4, dtype=F32)}
    once = guard(optax.chain(optax.clip(1.0), optax.adam(0.1)))
    nested = guard(
        optax.chain(guard(optax.clip(1.0)), guard(optax.chain(guard(optax.adam(0.1)))))
    )
    bare = train(once, params)
    result = train(nested, params)
    np.testing.assert_array_equal(bare[0]["w"], result[0]["w"])
