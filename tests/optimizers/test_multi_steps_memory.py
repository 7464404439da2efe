"""multi_steps writes updates over the accumulator: the memory saved, what does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import tree_util

from dtypeguard import Policy, guard, multi_steps, prodigy
from tests.support.dtypes import BF16, F32, I32
from tests.support.helpers import assert_close, assert_same, needs_explicit_x64

of_new_xla = lambda *case: pytest.param(*case, marks=needs_explicit_x64)  # since JAX 0.10
jitted = pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])


@pytest.mark.third_party
@pytest.mark.parametrize(
    ("make", "dtype", "leaves", "most"),
    [
        (lambda: multi_steps(optax.adam(1e-3), 4), F32, 4, 0.1),
        (lambda: multi_steps(prodigy(), 4), F32, 1, 0.1),
        # Lion's update and its momentum each read what the other overwrites: the sums.
        (lambda: multi_steps(optax.lion(1e-3), 4), F32, 4, 1.1),
        (lambda: multi_steps(optax.lion(1e-3), 4), BF16, 4, 1.3),
        # XLA computes the update from `m` and `v` first, and copies neither.
        of_new_xla(lambda: multi_steps(prodigy(), 4), BF16, 1, 2.1),
        of_new_xla(prodigy, BF16, 1, 3.6),
    ],
)
def test_temporary_memory_of_a_donated_step(make, dtype, leaves, most):
    """In copies of the params."""
    opt, params = make(), [jax.ShapeDtypeStruct((256, 256), dtype)] * leaves

    def step(params, state):
        grads = tree_util.tree_map(lambda p: p * jnp.asarray(0.01, p.dtype), params)
        updates, state = opt.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.eval_shape(opt.init, params)
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(params, state)
    size = sum(p.size * p.dtype.itemsize for p in params)
    assert lowered.compile().memory_analysis().temp_size_in_bytes / size < most


def test_the_updates_of_a_silent_mini_step_are_where_the_sums_are():
    params = jax.device_put(jnp.ones(4), jax.devices()[-1])
    opt = multi_steps(optax.sgd(1.0), 3)
    updates, _ = jax.jit(opt.update)(params, opt.init(params), params)
    assert updates.devices() == params.devices()


@jitted
@pytest.mark.parametrize("dtype", [F32, BF16, jnp.complex64], ids=lambda d: d.__name__)
def test_a_silent_mini_step_leaves_every_bit_of_the_params_alone(dtype, jit):
    """Even the sign of -0.0, which `p + 0.0` would lose."""
    opt, params = multi_steps(optax.sgd(1.0), 3), -jnp.zeros(4, dtype)

    def step(params, state):
        updates, state = opt.update(jnp.ones_like(params), state, params)
        return optax.apply_updates(params, updates), state

    step, state = jax.jit(step) if jit else step, opt.init(params)
    for _ in range(2):
        params, state = step(params, state)
        assert_same(params, -jnp.zeros(4, dtype))
    assert np.all(np.asarray(step(params, state)[0]) == -1)


# What does not fit ---------------------------------------------------------------------


def giving(change):
    """An optimizer whose updates are what a function makes of the gradients and params."""
    return optax.GradientTransformation(
        lambda params: (),
        lambda updates, state, params=None: (change(updates, params), state),
    )


def each(function):
    return lambda updates, params: tree_util.tree_map(function, updates)


_FIRST = {"w": np.arange(3.0), "b": np.ones((2, 2))}
_BATCH = {"w": np.ones((5, 3)), "b": np.ones((5, 2, 2))}
cast = lambda tree, dtype: jax.device_put(
    tree_util.tree_map(lambda leaf: leaf.astype(dtype), tree)
)
PARAMS, BATCH = jax.device_put((_FIRST, _BATCH))
NARROW, COUNTS = cast(_FIRST, BF16), cast(_FIRST, I32)
WIDE = Policy(compute_dtype=F32, updates_dtype=F32)
means, scaled = each(lambda g: g.mean(0)), each(lambda g: g * F32(0.3))
counts = each(lambda g: jnp.full(g.shape, 2**24 + 1, I32))
decays_b = lambda g, p: {"w": g["w"], "b": -p["b"]}
CASES = {
    # name: inner, params, gradients
    "another shape": (giving(means), BATCH, BATCH),
    "float32 in bfloat16": (guard(giving(scaled), policy=WIDE), NARROW, NARROW),
    "integers": (guard(giving(counts), policy=Policy(casting="unsafe")), COUNTS, PARAMS),
    "an update without a gradient": (giving(decays_b), PARAMS, PARAMS | {"b": None}),
    "no update for a gradient": (giving(lambda g, p: g | {"b": None}), PARAMS, PARAMS),
}


@pytest.mark.parametrize("name", CASES)
def test_updates_of_all_kinds_are_those_without_jit(name):
    """Without jit there is no branch, and nothing is overwritten."""
    inner, params, grads = CASES[name]
    dtype = BF16 if name == "float32 in bfloat16" else F32
    opt = multi_steps(inner, 2, accumulator_dtype=dtype)
    state = eager_state = opt.init(params)
    update = jax.jit(opt.update)
    for number in range(5):
        updates, state = update(grads, state, params)
        expected, eager_state = opt.update(grads, eager_state, params)
        assert_close((updates, state), (expected, eager_state), rtol=1e-8)
        emitted = number % 2 == 1
        assert is_zero(updates) == (not emitted)
        assert is_zero(state.acc_grads) == emitted


def is_zero(tree):
    return not any(np.any(np.asarray(leaf)) for leaf in tree_util.tree_leaves(tree))


# Precision ------------------------------------------------------------------------------


@jitted
@pytest.mark.parametrize("updates_dtype", [None, F32], ids=str)
def test_a_policy_that_computes_in_float32_sees_the_mean_in_float32(updates_dtype, jit):
    """Rounding it to bfloat16 would lose what the accumulator kept."""
    inner = optax.GradientTransformation(
        lambda params: jnp.zeros(3, F32),
        lambda updates, state, params=None: (updates, updates.astype(F32)),
    )
    policy = Policy(compute_dtype=F32, updates_dtype=updates_dtype)
    opt, params = multi_steps(guard(inner, policy=policy), 2), jnp.ones(3, BF16)
    update = jax.jit(opt.update) if jit else opt.update
    for given in (params, None):
        state = opt.init(params)
        for grad in (1.0, 1.0078125):
            updates, state = update(jnp.full(3, grad, BF16), state, given)
        np.testing.assert_array_equal(state.inner_opt_state, F32(1.00390625))
        assert updates.dtype == (updates_dtype or BF16)
