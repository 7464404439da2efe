"""Guards in what JAX offers around a program."""

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_same, types
from jax import tree_util

from dtypeguard import Policy, apply_updates, guard, guard_step

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
OPTIMIZERS = {
    "adam": guard(optax.adam(0.1)),
    "bfloat16": guard(
        optax.adam(0.1),
        policy=Policy(
            compute_dtype=F32,
            state_dtype=BF16,
            updates_dtype=F32,
            rounding="stochastic",
            on_drift="error",
        ),
    ),
}
every = pytest.mark.parametrize("opt", OPTIMIZERS.values(), ids=OPTIMIZERS)


def first(opt):
    params = {"w": jnp.linspace(-1, 1, 12).reshape(4, 3).astype(BF16)}
    return params, opt.init(params)


def step_of(opt):
    @guard_step
    def step(carry, rate):
        params, state = carry
        grads = tree_util.tree_map(lambda p: p.astype(F32) * rate, params)
        updates, state = opt.update(grads, state, params)
        return apply_updates(params, updates), state

    return step


RATE = np.float32(0.5)


def train(opt, carry=None, steps=3, jitted=True):
    step = step_of(opt)
    step = jax.jit(step) if jitted else step
    carry = first(opt) if carry is None else carry
    for _ in range(steps):
        carry = step(carry, RATE)
    return carry


def in_a_thread(run):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        (once, *others) = [made.result() for made in [pool.submit(run) for _ in range(4)]]
    for other in others:
        assert_same(other, once)
    return once


def within(context):
    def surround(run):
        with context():
            return run()

    return surround


SURROUNDINGS = {
    "tracer leaks": within(jax.checking_leaks),
    "nan checks": within(functools.partial(jax.debug_nans, True)),
    "threads": in_a_thread,
}


@every
@pytest.mark.parametrize("name", SURROUNDINGS, ids=lambda name: name.replace(" ", "_"))
def test_a_surrounding_changes_nothing(name, opt):
    expected = train(opt)
    assert_same(SURROUNDINGS[name](functools.partial(train, opt)), expected)


@every
def test_without_jit(opt):
    """XLA may fuse a compiled step, so only types are the same."""
    with jax.disable_jit():
        assert types(train(opt)) == types(first(opt))
    assert types(train(opt, jitted=False)) == types(first(opt))


@every
def test_no_number_goes_to_the_device_behind_the_callers_back(opt):
    rate, carry, step = jax.device_put(RATE), first(opt), jax.jit(step_of(opt))
    with jax.transfer_guard("disallow"):
        for _ in range(3):
            carry = step(carry, rate)
    assert_same(carry, train(opt))
