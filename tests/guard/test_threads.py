"""Threads with flags of their own, guards in guards, and optimizations in optimizations."""

import concurrent.futures
import threading
import time

import jax
import jax.numpy as jnp
import optax
import pytest
from helpers import needs_x64_scope, set_x64, types
from one_leaf import transformation

from dtypeguard import DtypeDriftError, guard

pytestmark = pytest.mark.third_party
F32 = jnp.float32


@needs_x64_scope
def test_threads_keep_their_own_flags():
    """One guarded transformation for all: what a thread sees inside is never another's."""
    inside, start = [], threading.Barrier(8)

    def init(params):
        inside.append(jax.config.jax_enable_x64)
        return jnp.zeros((), F32)

    def update(updates, state, params=None):
        inside.append(jax.config.jax_enable_x64)
        time.sleep(0.001)  # another thread may well run now
        inside.append(jax.config.jax_enable_x64)
        return updates, state + F32(1)

    opt = guard(transformation(update, init))
    params = {"w": jnp.ones(3, F32)}

    def work(number):
        x64 = bool(number % 2)
        outside = []
        with set_x64(x64):
            start.wait()
            for _ in range(20):
                # New functions: JAX keeps the traces of one that it knows.
                state = jax.eval_shape(lambda p: opt.init(p), params)
                outside.append(jax.config.jax_enable_x64)
                trace = lambda *args: opt.update(*args)
                _, new_state = jax.eval_shape(trace, params, state, params)
                outside.append(jax.config.jax_enable_x64)
                assert types(new_state) == types(state)
        return set(outside) == {x64}

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert len(inside) == 8 * 20 * 3
    assert set(inside) == {False}


class Interrupt(BaseException):
    """As KeyboardInterrupt: no Exception."""


def _fails_with(error):
    def fail(*args):
        raise error

    return fail


FAILING = {
    "init": lambda error: (_fails_with(error), lambda u, s, p=None: (u, s)),
    "update": lambda error: (lambda params: jnp.zeros((), F32), _fails_with(error)),
    "refused": lambda error: (
        lambda params: jnp.zeros((), F32),
        lambda u, s, p=None: (u, jnp.stack([s, s])),
    ),
}
ERRORS = [RuntimeError("mine"), TypeError("mine"), ValueError("mine"), Interrupt("mine")]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", FAILING)
def test_the_flag_is_restored_on_every_path(where, error, nested, x64):
    opt = optax.GradientTransformation(*FAILING[where](error))
    opt = guard(optax.chain(guard(opt), optax.identity())) if nested else guard(opt)
    params = {"w": jnp.ones(3, jnp.bfloat16)}  # narrow: a TypeError is rescued, in vain
    refused = where == "refused"
    expected = DtypeDriftError if refused else type(error)
    match = "return it in shape" if refused else "mine"
    with set_x64(x64):
        with pytest.raises(expected, match=match):
            opt.update(params, opt.init(params), params)
        assert jax.config.jax_enable_x64 == x64


@pytest.mark.parametrize("x64", [False, True])
def test_an_error_in_a_guarded_optimization_within_a_value_fn(x64):
    """The inner guard fails, below the outer one's scope: both flags come back."""
    flags = []

    def value_fn(params):
        flags.append(jax.config.jax_enable_x64)
        inner = optax.GradientTransformation(*FAILING["update"](RuntimeError("mine")))
        try:
            guard(inner).update(params, jnp.zeros((), F32), params)
        finally:
            flags.append(jax.config.jax_enable_x64)

    opt = guard(optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(5)))
    params = {"w": jnp.ones(3, F32)}
    with set_x64(x64):
        state = opt.init(params)
        value = jnp.ones((), F32)
        with pytest.raises(RuntimeError, match="mine"):
            opt.update(params, state, params, value=value, grad=params, value_fn=value_fn)
        assert jax.config.jax_enable_x64 == x64
    assert set(flags) == {x64}


@needs_x64_scope
def test_nested_guards_are_blind_together():
    """Under x64 every level runs as if it were off, and the caller has it on again."""
    seen = []

    def update(updates, state, params=None):
        seen.append(jax.config.jax_enable_x64)
        return updates, state

    inner = guard(optax.GradientTransformation(lambda params: jnp.zeros((), F32), update))
    params = {"w": jnp.ones(3, F32)}
    with set_x64(True):
        outer = guard(optax.chain(guard(optax.chain(inner, optax.identity()))))
        outer.update(params, outer.init(params), params)
        assert jax.config.jax_enable_x64
    assert seen == [False]
