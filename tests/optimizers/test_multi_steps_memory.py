"""multi_steps writes updates over the accumulator: the memory saved, what does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from helpers import assert_close, assert_same, needs_explicit_x64, types
from jax import tree_util

import dtypeguard
from dtypeguard import Policy, guard, multi_steps

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32
third_party = pytest.mark.third_party
needs_new_xla = needs_explicit_x64  # both since JAX 0.10


def temporary_memory(opt, params, given=False):
    """What XLA sets aside for a donated train step, in copies of the params.

    The step makes its gradients of the params, or is `given` some.
    """

    def step(params, state, grads):
        if grads is None:
            grads = tree_util.tree_map(lambda p: p * jnp.asarray(0.01, p.dtype), params)
        updates, state = opt.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.eval_shape(opt.init, params)
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(
        params, state, params if given else None
    )
    size = sum(p.size * p.dtype.itemsize for p in tree_util.tree_leaves(params))
    return lowered.compile().memory_analysis().temp_size_in_bytes / size


def shapes(dtype, leaves):
    return [jax.ShapeDtypeStruct((256, 256), dtype)] * leaves


LEAN = {
    "sgd": lambda: optax.sgd(1e-3),
    "adam": lambda: optax.adam(1e-3),
    "adamw": lambda: optax.adamw(1e-3),
    "prodigy": lambda: dtypeguard.prodigy(),
}


@third_party
@pytest.mark.parametrize("name", LEAN)
def test_a_mini_step_needs_no_temporary_memory(name):
    opt = multi_steps(LEAN[name](), 4)
    assert temporary_memory(opt, shapes(F32, 1 if name == "prodigy" else 4)) < 0.1


@needs_new_xla
def test_prodigy_in_bfloat16_needs_the_memory_of_gradients_and_updates():
    """It copies neither `m` nor `v`, because XLA computes the update from them first."""
    opt = multi_steps(dtypeguard.prodigy(), 4)
    assert temporary_memory(opt, shapes(BF16, 1)) < 2.1
    assert temporary_memory(dtypeguard.prodigy(), shapes(BF16, 1)) < 3.6


@third_party
@pytest.mark.parametrize("dtype", [F32, BF16], ids=lambda d: d.__name__)
def test_lion_copies_only_the_sums(dtype):
    """Its update and its momentum each read what the other overwrites."""
    opt = multi_steps(optax.lion(1e-3), 4)
    assert temporary_memory(opt, shapes(dtype, 4)) < (1.1 if dtype == F32 else 1.3)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", [F32, BF16, jnp.complex64], ids=lambda d: d.__name__)
def test_a_silent_mini_step_leaves_every_bit_of_the_params_alone(dtype, jit):
    """Even the sign of -0.0, which `p + 0.0` would lose."""
    opt = multi_steps(optax.sgd(1.0), 3)
    params = -jnp.zeros(4, dtype)
    state = opt.init(params)
    step = lambda params, state: apply(opt, params, state)
    step = jax.jit(step) if jit else step
    for _ in range(2):
        params, state = step(params, state)
        assert_same(params, -jnp.zeros(4, dtype))
    assert np.all(np.asarray(step(params, state)[0]) == -1)


def apply(opt, params, state):
    updates, state = opt.update(jnp.ones_like(params), state, params)
    return optax.apply_updates(params, updates), state


# What does not fit ---------------------------------------------------------------------


def giving(updates_of, state_of=lambda params: ()):
    """An optimizer whose updates are what a function makes of the gradients and params."""
    update = lambda updates, state, params=None: (updates_of(updates, params), state)
    return optax.GradientTransformation(state_of, update)


def scaled(factor, dtype=None):
    return lambda updates, params: tree_util.tree_map(
        lambda g: (g * jnp.asarray(factor, g.dtype)).astype(dtype or g.dtype), updates
    )


def grads_at(number):
    return {"w": jnp.arange(3, dtype=F32) + number, "b": jnp.full((2, 2), number, F32)}


PARAMS = {"w": jnp.ones(3, F32), "b": jnp.ones((2, 2), F32)}
IN_BF16 = tree_util.tree_map(lambda p: p.astype(BF16), PARAMS)
in_dtype = lambda dtype, number: tree_util.tree_map(
    lambda g: g.astype(dtype), grads_at(number)
)
BATCH = {"w": jnp.ones((5, 3), F32), "b": jnp.ones((5, 2, 2), F32)}
CASES = {
    # name: inner, options, params, gradients of mini-step n, the updates of n = 1 after 0
    "another shape": (
        giving(lambda g, _: tree_util.tree_map(lambda x: x.mean(0), g)),
        {},
        lambda: BATCH,
        lambda n: tree_util.tree_map(lambda x: x * (n + 1), BATCH),
    ),
    "float32 in float32 of bfloat16 params": (
        guard(giving(scaled(0.3)), policy=Policy(compute_dtype=F32, updates_dtype=F32)),
        {},
        lambda: IN_BF16,
        lambda n: in_dtype(BF16, n),
    ),
    "integers": (
        guard(giving(scaled(2, I32)), policy=Policy(casting="unsafe")),
        {},
        lambda: in_dtype(I32, 1),
        lambda n: in_dtype(F32, n),
    ),
    "an update without a gradient": (
        giving(lambda g, p: {"w": g["w"], "b": -p["b"]}),
        {},
        lambda: PARAMS,
        lambda n: {"w": grads_at(n)["w"], "b": None},
    ),
    "no update for a gradient": (
        giving(lambda g, _: {"w": g["w"], "b": None}),
        {},
        lambda: PARAMS,
        grads_at,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_updates_of_all_kinds_are_those_without_jit(name):
    """Without jit there is no branch, and nothing is overwritten."""
    inner, options, params, grads = CASES[name]
    params = params()
    opt = multi_steps(inner, 2, **options)
    state = eager_state = opt.init(params)
    jitted = jax.jit(opt.update)
    for number in range(5):
        updates, state = jitted(grads(number), state, params)
        expected, eager_state = opt.update(grads(number), eager_state, params)
        assert types(updates) == types(expected)
        assert_close((updates, state), (expected, eager_state), rtol=1e-6)
        emitted = number % 2 == 1
        assert is_zero(updates) == (not emitted)
        assert is_zero(state.acc_grads) == emitted


def is_zero(tree):
    return not any(np.any(np.asarray(leaf)) for leaf in tree_util.tree_leaves(tree))


# Precision ------------------------------------------------------------------------------


def seeing():
    """An optimizer whose state is the last gradients, in float32."""
    return optax.GradientTransformation(
        lambda params: tree_util.tree_map(lambda p: jnp.zeros_like(p, dtype=F32), params),
        lambda updates, state, params=None: (
            updates,
            tree_util.tree_map(lambda g: g.astype(F32), updates),
        ),
    )


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("updates_dtype", [None, "grads", F32], ids=str)
def test_a_policy_that_computes_in_float32_sees_the_mean_in_float32(updates_dtype, jit):
    """Rounding it to bfloat16 would lose what the accumulator kept."""
    policy = Policy(compute_dtype=F32, updates_dtype=updates_dtype)
    opt = multi_steps(guard(seeing(), policy=policy), 2)
    params = jnp.ones(3, BF16)
    grads = [jnp.full(3, g, BF16) for g in (1.0, 1.0078125)]
    for given in (params, None):
        state = opt.init(params)
        update = jax.jit(opt.update) if jit else opt.update
        for grad in grads:
            updates, state = update(grad, state, given)
        np.testing.assert_array_equal(state.inner_opt_state, F32(1.00390625))
        assert updates.dtype == (F32 if updates_dtype == F32 else BF16)
