"""multi_steps writes updates over the accumulator: the memory saved, what does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from helpers import assert_close, assert_same, needs_explicit_x64, set_x64, types
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
    "optax's prodigy": lambda: optax.contrib.prodigy(),
    "prodigy": lambda: dtypeguard.prodigy(),
}
COPYING = {"lion": lambda: optax.lion(1e-3), "muon": lambda: optax.contrib.muon(1e-3)}


def need_in_optax(name):
    needed = {"optax's prodigy": "prodigy", "muon": "muon"}.get(name)
    if needed and not hasattr(optax.contrib, needed):
        pytest.skip(f"optax {optax.__version__} has no contrib.{needed}")


def by_leaves(names, few, many):
    """Each with many leaves; what compiles for long with few, and at length with many."""
    slow = [name for name in names if name in ("prodigy", "optax's prodigy", "muon")]
    cases = [(name, few if name in slow else many) for name in names]
    return cases + [pytest.param(n, many, marks=pytest.mark.exhaustive) for n in slow]


@third_party
@pytest.mark.parametrize(("name", "leaves"), by_leaves(LEAN, 1, 4))
def test_a_mini_step_needs_no_temporary_memory(name, leaves):
    need_in_optax(name)
    opt = multi_steps(LEAN[name](), 4)
    assert temporary_memory(opt, shapes(F32, leaves)) < 0.1


@third_party
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_a_mini_step_in_bfloat16_needs_the_memory_of_one_moment(name):
    opt = multi_steps(LEAN[name](), 4)
    assert temporary_memory(opt, shapes(BF16, 4)) < 1.1


@needs_new_xla
@pytest.mark.parametrize("leaves", [1, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_prodigy_in_bfloat16_needs_the_memory_of_gradients_and_updates(leaves):
    """It copies neither `m` nor `v`, because XLA computes the update from them first."""
    opt = multi_steps(dtypeguard.prodigy(), 4)
    assert temporary_memory(opt, shapes(BF16, leaves)) < 2.1
    assert temporary_memory(dtypeguard.prodigy(), shapes(BF16, leaves)) < 3.6


@needs_new_xla
@pytest.mark.parametrize(("slice_p", "bound"), [(1, 2.1), (11, 1.1)])
def test_prodigy_in_bfloat16_with_gradients_as_arguments(slice_p, bound):
    """Without the forced order it needs 6 copies, or 2.4 with `slice_p=11`."""
    opt = dtypeguard.prodigy(slice_p=slice_p)
    assert temporary_memory(opt, shapes(BF16, 4), given=True) < bound


@third_party
@pytest.mark.parametrize("dtype", [F32, BF16], ids=lambda d: d.__name__)
def test_lion_copies_only_the_sums(dtype):
    """Its update and its momentum each read what the other overwrites."""
    opt = multi_steps(optax.lion(1e-3), 4)
    assert temporary_memory(opt, shapes(dtype, 4)) < (1.1 if dtype == F32 else 1.3)


@third_party
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [F32, BF16], ids=lambda d: d.__name__)
@pytest.mark.parametrize(
    ("name", "leaves"), by_leaves(["optax's prodigy", "prodigy", *COPYING], 1, 3)
)
def test_never_more_than_optax(name, leaves, dtype):
    """The tests above have bounds for the others."""
    need_in_optax(name)
    make = (LEAN | COPYING)[name]
    theirs = optax.MultiSteps(guard(make()), 4)
    ours, theirs = (
        temporary_memory(opt, shapes(dtype, leaves))
        for opt in (multi_steps(make(), 4), theirs)
    )
    assert ours <= theirs


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
    "wider than the accumulator": (
        guard(giving(scaled(0.3)), policy=Policy(compute_dtype=F32, updates_dtype=F32)),
        {"accumulator_dtype": BF16},
        lambda: IN_BF16,
        lambda n: in_dtype(BF16, n),
    ),
    "float32 in float32 of bfloat16 params": (
        guard(giving(scaled(0.3)), policy=Policy(compute_dtype=F32, updates_dtype=F32)),
        {},
        lambda: IN_BF16,
        lambda n: in_dtype(BF16, n),
    ),
    "float16 in bfloat16": (
        giving(scaled(0.3)),
        {"accumulator_dtype": BF16},
        lambda: in_dtype(jnp.float16, 0),
        lambda n: in_dtype(jnp.float16, n),
    ),
    "integers": (
        guard(giving(scaled(2, I32)), policy=Policy(casting="unsafe")),
        {},
        lambda: in_dtype(I32, 1),
        lambda n: in_dtype(F32, n),
    ),
    "complex": (
        giving(scaled(0.5j)),
        {},
        lambda: in_dtype(jnp.complex64, 1),
        lambda n: in_dtype(jnp.complex64, n),
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


def test_float64_updates_keep_their_bits_beside_a_float32_accumulator():
    with set_x64(True):
        third = lambda g, _: g.astype(jnp.float64) / 3
        inner = guard(giving(third), policy=Policy(updates_dtype=jnp.float64))
        opt = multi_steps(inner, 2)
        params = jnp.ones(3, F32)
        state, update = opt.init(params), jax.jit(opt.update)
        for _ in range(2):
            updates, state = update(params, state, params)
        assert (updates.dtype, state.acc_grads.dtype) == (jnp.float64, F32)
        np.testing.assert_array_equal(updates, np.full(3, 1 / 3))


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


def test_without_a_policy_the_mean_comes_in_the_dtype_of_the_gradients():
    opt = multi_steps(seeing(), 2)
    params, state = jnp.ones(3, BF16), opt.init(jnp.ones(3, BF16))
    for grad in (1.0, 1.0078125):
        _, state = opt.update(jnp.full(3, grad, BF16), state, params)
    np.testing.assert_array_equal(state.inner_opt_state, F32(1.0))


@needs_new_xla
@pytest.mark.parametrize("grad_dtype", [F32, jnp.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("asked", [None, F32, jnp.float64], ids=str)
def test_float64_arrays_while_x64_is_off(asked, grad_dtype):
    jax.config.update("jax_explicit_x64_dtypes", "allow")
    try:
        params = {"w": jnp.ones(3, jnp.float64)}
        opt = multi_steps(optax.sgd(0.5), 2, accumulator_dtype=asked)
        state, update = opt.init(params), jax.jit(opt.update)
        for number in (1, 2):
            grads = {"w": jnp.full(3, 1 / number, grad_dtype)}
            updates, state = update(grads, state, params)
        assert state.acc_grads["w"].dtype == updates["w"].dtype == np.float64
        np.testing.assert_array_equal(updates["w"], -0.375)
    finally:
        jax.config.update("jax_explicit_x64_dtypes", "warn")
