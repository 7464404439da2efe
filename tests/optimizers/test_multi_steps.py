"""multi_steps: the numbers of optax.MultiSteps, one inner update in k mini-steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from helpers import (
    assert_close,
    assert_same,
    needs_x64_scope,
    set_x64,
    types,
)
from jax import lax, tree_util
from quadratic import assert_blind, make_params

import dtypeguard
from dtypeguard import guard, multi_steps

BF16, F16, F32, I32 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32
third_party = pytest.mark.third_party


def gradients(params, number):
    """Gradients of mini-step `number`, in the dtypes of the params."""
    wave = lambda p: jnp.cos(jnp.arange(p.size, dtype=F32) + number).reshape(p.shape)
    return tree_util.tree_map(lambda p: wave(p).astype(p.dtype), params)


def train(opt, params, steps, grads_at=gradients, **extra_args):
    """Params and state after each step, the step compiled once."""

    @jax.jit
    def step(params, state, grads):
        updates, state = opt.update(grads, state, params, **extra_args)
        return tree_util.tree_map(lambda p, u: p + u, params, updates), state

    carry, history = (params, opt.init(params)), []
    for number in range(steps):
        carry = step(*carry, grads_at(params, number))
        history.append(carry)
    return history


def counting(inner=None):
    """An inner optimizer whose state counts its updates and keeps the last gradients."""
    del inner

    def update(updates, state, params=None):
        return updates, {"runs": state["runs"] + 1, "seen": updates}

    init = lambda p: {
        "runs": jnp.zeros((), I32),
        "seen": tree_util.tree_map(jnp.zeros_like, p),
    }
    return optax.GradientTransformation(init, update)


# The numbers of optax.MultiSteps ------------------------------------------------------

INNER = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(0.1),
    "chain": lambda: optax.chain(optax.clip(0.5), optax.adamw(0.1)),
    "lion": lambda: optax.lion(0.1),
    "prodigy": lambda: dtypeguard.prodigy(),
}


# k and the mean are not the inner's affair: all of them with one, two with each other.
KS = [(name, k, mean) for name in INNER for k in (1, 2, 5) for mean in (True, False)]
SHORT = [x for x in KS if x[1:] == (2, True) or (x[0] == "adam" and x[1:] != (1, True))]
long = [pytest.param(*case, marks=pytest.mark.exhaustive) for case in {*KS} - {*SHORT}]


@third_party
@pytest.mark.parametrize(("name", "k", "mean"), [*SHORT, *sorted(long, key=str)])
def test_numbers_of_optax(name, k, mean):
    assert_as_optax(INNER[name], k, 11, use_grad_mean=mean)


def assert_as_optax(make, k, steps, grads_at=gradients, **options):
    """Every step has the params and the state of optax.MultiSteps; returns the last."""
    theirs = optax.MultiSteps(guard(make()), k, **options)
    ours = multi_steps(make(), k, **options)
    sides = (train(opt, make_params(), steps, grads_at) for opt in (theirs, ours))
    for expected, found in zip(*sides):
        assert_close(expected, found, rtol=3e-6, atol=1e-7)
    return found[1]


@third_party
def test_k_by_schedule():
    schedule = lambda gradient_step: jnp.where(gradient_step < 2, 1, 3)
    state = assert_as_optax(INNER["adam"], schedule, 12)
    assert int(state.gradient_step) == 2 + 10 // 3


def test_a_smaller_k_takes_effect_at_once():
    params = make_params()
    (_, state) = train(multi_steps(counting(), 8), params, 5)[-1]
    opt = multi_steps(counting(), 2)
    _, state = opt.update(gradients(params, 5), state, params)
    assert (int(state.mini_step), int(state.inner_opt_state["runs"])) == (0, 1)


# One inner update in k ----------------------------------------------------------------


@third_party
def test_the_inner_update_runs_only_on_the_mini_step_that_emits():
    ran = []

    def update(updates, state, params=None):
        jax.debug.callback(lambda: ran.append(1), ordered=False)
        return updates, state

    inner = optax.GradientTransformation(lambda params: optax.EmptyState(), update)
    train(multi_steps(inner, 4), make_params(), 9)
    jax.effects_barrier()
    assert len(ran) == 2
    ran.clear()
    train(optax.MultiSteps(inner, 4), make_params(), 9)
    jax.effects_barrier()
    assert len(ran) == 9


def test_without_jit_the_inner_update_is_not_traced():
    """A conditional has new branches at every step, and would compile each time."""
    seen = []

    def update(updates, state, params=None):
        seen.append(not isinstance(updates["w"], jax.core.Tracer))
        return updates, state

    inner = optax.GradientTransformation(lambda params: optax.EmptyState(), update)
    opt = multi_steps(inner, 3)
    params = {"w": jnp.ones(3)}
    state = opt.init(params)
    for number in range(6):
        updates, state = opt.update(params, state, params)
        assert seen[-1] == (number % 3 == 2)
        assert float(updates["w"][0]) == (number % 3 == 2)


# Types --------------------------------------------------------------------------------


@third_party
@pytest.mark.parametrize(
    ("dtype", "grad_dtype"),
    [(BF16, F32), (F16, BF16), (F32, BF16)],
    ids=lambda d: d.__name__,
)
def test_types_are_kept(dtype, grad_dtype):
    params = make_params(dtype)
    opt = multi_steps(optax.adam(0.1), 2)
    state = opt.init(params)
    cast_grads = lambda p, n: gradients(make_params(grad_dtype), n)
    for new_params, new_state in train(opt, params, 3, cast_grads):
        assert types(new_state) == types(state)
        assert types(new_params) == types(params)
    assert state.acc_grads["w"].dtype == F32


@pytest.mark.parametrize(
    ("param", "asked", "expected"),
    [
        (BF16, F32, F32),
        (BF16, None, BF16),
        (F32, BF16, BF16),
        (jnp.float64, F32, jnp.float64),
        (I32, F32, F32),
    ],
    ids=str,
)
def test_dtype_of_the_accumulator(param, asked, expected):
    with set_x64(True):
        opt = multi_steps(optax.sgd(0.1), 2, accumulator_dtype=asked)
        assert opt.init(jnp.ones(3, param)).acc_grads.dtype == expected


def test_float64_gradients_of_float32_params_in_a_float64_accumulator():
    with set_x64(True):
        params, grads = jnp.zeros(2, F32), jnp.ones(2, jnp.float64)
        opt = multi_steps(optax.sgd(0.1), 2, accumulator_dtype=jnp.float64)
        updates, state = opt.update(grads, opt.init(params), params)
        assert (updates.dtype, state.acc_grads.dtype) == (F32, jnp.float64)


@third_party
@pytest.mark.parametrize(
    ("has_grad", "dtype", "mean", "wrap"),
    [
        ((0, 0, 1), BF16, True, jax.jit),
        ((0, 1, 0), F32, False, lambda update: update),
        ((0, 0, 0), BF16, True, lambda update: update),
        ((0, 0, 0), F32, True, jax.jit),
    ],
)
def test_a_gradient_that_is_none_on_some_mini_steps(has_grad, dtype, mean, wrap):
    """It counts as 0: eagerly and jitted, and if it is None on all of them too."""
    params = {"w": jnp.full(3, 0.5, dtype), "b": jnp.ones(2, F32), "n": jnp.ones(2, I32)}
    inner = optax.chain(optax.trace(0.9), optax.add_decayed_weights(0.1))
    opt = multi_steps(inner, 3, use_grad_mean=mean)
    state, step = opt.init(params), wrap(opt.update)
    for number, has in enumerate((*has_grad, 1, 1, 1)):
        grads = {"w": jnp.full(3, 3, dtype) if has else None, "b": jnp.ones(2), "n": None}
        updates, new_state = step(grads, state, params)
        assert types(new_state) == types(state)
        assert updates["n"] is None
        state = new_state
        if number == 2:
            first = updates["w"]
    grad = sum(has_grad) * (1 if mean else 3)
    assert first.dtype == dtype
    np.testing.assert_allclose(np.asarray(first, complex), grad + 0.05, rtol=1e-2)
    expected = (3 if mean else 9) + 0.9 * grad + 0.05
    np.testing.assert_allclose(np.asarray(updates["w"], complex), expected, rtol=1e-2)
    assert not np.any(state.acc_grads["w"])


# State of optax -----------------------------------------------------------------------


@third_party
def test_a_checkpoint_goes_both_ways():
    params = make_params()
    theirs = optax.MultiSteps(guard(optax.adam(0.1)), 3)
    ours = multi_steps(optax.adam(0.1), 3)
    assert isinstance(ours.init(params), optax.MultiStepsState)
    assert_same(ours.init(params), theirs.init(params))
    expected = train(theirs, params, 8)[-1]
    for first, second in ((theirs, ours), (ours, theirs)):
        carry = train(first, params, 4)[-1]
        for number in range(4, 8):
            new_params, state = carry
            updates, state = jax.jit(second.update)(
                gradients(params, number), state, new_params
            )
            carry = optax.apply_updates(new_params, updates), state
        assert_close(carry, expected, rtol=3e-6, atol=1e-7)


# Extra args ---------------------------------------------------------------------------


def quadratic(params):
    return sum(jnp.sum((leaf - 3) ** 2) for leaf in tree_util.tree_leaves(params))


LEARNS_FROM_VALUES = {
    "lbfgs": lambda: optax.lbfgs(),
    "polyak": lambda: optax.polyak_sgd(),
    "plateau": lambda: optax.chain(
        optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=2)
    ),
}


@third_party
@pytest.mark.parametrize(
    ("name", "chained"),
    [("lbfgs", False), ("polyak", False), ("polyak", True), ("plateau", False)],
)
def test_optimizers_that_need_values(name, chained):
    """Two mini-steps at the same params are one step of the inner optimizer."""
    opt = multi_steps(LEARNS_FROM_VALUES[name](), 2)
    opt = optax.chain(optax.identity(), opt) if chained else opt
    reached = {}
    for steps, each in ((12, opt), (6, guard(LEARNS_FROM_VALUES[name]()))):

        @jax.jit
        def step(params, state, each=each):
            value, grads = jax.value_and_grad(quadratic)(params)
            extra = {"value": value, "grad": grads, "value_fn": quadratic}
            if name == "plateau":
                extra["loss"] = value  # as Optax 0.1.9 calls it
            updates, state = each.update(grads, state, params, **extra)
            return optax.apply_updates(params, updates), state

        params = make_params()
        state = each.init(params)
        for _ in range(steps):
            params, state = step(params, state)
        assert step._cache_size() == 1
        reached[steps] = params
    assert quadratic(params) < 0.9 * quadratic(make_params())
    assert_close(reached[12], reached[6], rtol=1e-5, atol=1e-6)


def test_the_inner_update_gets_the_extra_args_of_the_mini_step_that_emits():
    def update(updates, state, params=None, *, value, note="none"):
        assert note == "passed on"
        return updates, value

    inner = optax.GradientTransformationExtraArgs(lambda p: jnp.zeros((), F32), update)
    opt, params = multi_steps(inner, 3), make_params()
    state, seen = opt.init(params), []
    for value in range(6):
        _, state = opt.update(params, state, params, value=F32(value), note="passed on")
        seen.append(float(state.inner_opt_state))
    assert seen == [0, 0, 2, 2, 2, 5]


# Skipping -----------------------------------------------------------------------------


def with_bad_steps(params, number):
    grads = gradients(params, number)
    bad = {2: jnp.nan, 5: jnp.inf}.get(number, 1.0)
    return {**grads, "w": grads["w"] * jnp.asarray(bad, grads["w"].dtype)}


@third_party
def test_skips_as_optax_does():
    skip = {"should_skip_update_fn": optax.skip_not_finite}
    state = assert_as_optax(INNER["adam"], 3, 10, with_bad_steps, **skip)
    assert int(state.gradient_step) == 8 // 3


# Control flow and flags ---------------------------------------------------------------


@third_party
def test_vmap_over_states_of_different_mini_steps():
    opt = multi_steps(optax.adam(0.1), 3)
    history = train(opt, make_params(), 4)
    stack = lambda *leaves: jnp.stack(leaves)
    params, states = tree_util.tree_map(stack, *history)
    step = jax.jit(lambda params, state: opt.update(make_params(), state, params))
    updates, new_states = jax.jit(jax.vmap(step))(params, states)
    for i, (p, s) in enumerate(history):
        alone = step(p, s)
        row = tree_util.tree_map(lambda leaf, i=i: leaf[i], (updates, new_states))
        assert_close(row, alone, rtol=1e-5, atol=1e-7)
    assert sorted(map(int, new_states.mini_step)) == [0, 1, 2, 2]


@third_party
@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.jacrev])
def test_derivative_through_a_scan(derivative):
    """The branch is traced there, and JAX cannot transpose a loop."""

    def after(start, rate):
        opt = multi_steps(optax.adam(rate), 2)

        def body(carry, _):
            params, state = carry
            updates, state = opt.update(jnp.sin(params), state, params)
            return (params + updates, state), None

        return lax.scan(body, (start, opt.init(start)), None, length=4)[0][0]

    start, eps = jnp.array([1.0, 2.0]), 1e-2
    for argument in (0, 1):
        args = (start, jnp.float32(0.1))
        found = derivative(after, argnums=argument)(*args)
        direction = jnp.ones_like(args[argument])
        at = lambda t, a=args, i=argument, d=direction: after(
            *[x + t * d if i == n else x for n, x in enumerate(a)]
        )
        expected = (at(eps) - at(-eps)) / (2 * eps)
        total = found @ direction if argument == 0 else found
        np.testing.assert_allclose(total, expected, rtol=2e-2)


@third_party
@needs_x64_scope
def test_blind_to_the_x64_flag():
    skip = {"should_skip_update_fn": optax.skip_not_finite}
    assert_blind(lambda: multi_steps(optax.adam(0.1), 2, **skip), F32)


def test_integer_updates_are_not_written_over_a_floating_accumulator():
    params, number = jnp.zeros((), jnp.int32), 2**24 + 1

    def update(updates, state, params=None):
        return jnp.full((), number, jnp.int32), state

    inner = optax.GradientTransformation(lambda params: (), update)
    opt = multi_steps(inner, 2)
    state, step = opt.init(params), jax.jit(opt.update)
    for emitted in (0, number):
        updates, state = step(jnp.ones((), jnp.float32), state, params)
        assert (updates.dtype, int(updates)) == (jnp.int32, emitted)
