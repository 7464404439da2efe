"""multi_steps: the numbers of optax.MultiSteps, one inner update in k mini-steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax, tree_util
from jax.test_util import check_grads

import dtypeguard
from dtypeguard import DtypeGuardWarning, guard, multi_steps
from tests.support.dtypes import BF16, C64, F32, F64, I32
from tests.support.helpers import assert_close, assert_same, set_x64, types
from tests.support.one_leaf import PARAMS
from tests.support.quadratic import add, make_params

third_party = pytest.mark.third_party


def gradients(params, number):
    """Gradients of mini-step `number`, in the dtypes of the params."""
    wave = lambda p: jnp.cos(jnp.arange(p.size, dtype=F32) + number).reshape(p.shape)
    return tree_util.tree_map(lambda p: wave(p).astype(p.dtype), params)


def train(opt, carry, numbers, grads_at=gradients):
    """Params and state after each mini-step, the step compiled once."""

    @jax.jit
    def step(params, state, grads):
        updates, state = opt.update(grads, state, params)
        return add(params, updates), state

    history = []
    for number in numbers:
        carry = step(*carry, grads_at(carry[0], number))
        history.append(carry)
    return history


def first(opt):
    params = make_params()
    return params, opt.init(params)


def seeing(see=lambda updates: None):
    """An optimizer whose updates are its gradients, which it shows to a function."""

    def update(updates, state, params=None):
        see(updates)
        return updates, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


# The numbers of optax.MultiSteps ------------------------------------------------------


def with_bad_steps(params, number):
    grads = gradients(params, number)
    return {**grads, "w": grads["w"] * {2: jnp.nan, 5: jnp.inf}.get(number, 1.0)}


ADAM = lambda: optax.adam(0.1)
AS_OPTAX = {
    # name: inner, k, options, gradients
    "momentum": (lambda: optax.sgd(0.1, momentum=0.9), 2, {}, gradients),
    "chain": (lambda: optax.chain(optax.clip(0.5), ADAM()), 2, {}, gradients),
    "lion": (lambda: optax.lion(0.1), 2, {}, gradients),
    "prodigy": (lambda: dtypeguard.prodigy(), 2, {}, gradients),
    "each": (ADAM, 1, {}, gradients),
    "sum": (ADAM, 5, {"use_grad_mean": False}, gradients),
    "schedule": (ADAM, lambda n: jnp.where(n < 2, 1, 3), {}, gradients),
    "skip": (ADAM, 3, {"should_skip_update_fn": optax.skip_not_finite}, with_bad_steps),
}


@third_party
@pytest.mark.parametrize("name", AS_OPTAX)
def test_every_step_has_the_params_and_the_state_of_optax(name):
    make, k, options, grads_at = AS_OPTAX[name]
    theirs = optax.MultiSteps(guard(make()), k, **options)
    ours = multi_steps(make(), k, **options)
    sides = (train(opt, first(opt), range(11), grads_at) for opt in (theirs, ours))
    for expected, found in zip(*sides):
        assert_close(expected, found, rtol=3e-6, atol=1e-7)
    assert int(found[1].gradient_step) > 1


@third_party
def test_a_checkpoint_goes_both_ways():
    theirs, ours = optax.MultiSteps(guard(ADAM()), 3), multi_steps(ADAM(), 3)
    assert_same(first(ours), first(theirs))
    expected = train(theirs, first(theirs), range(8))[-1]
    for before, after in ((theirs, ours), (ours, theirs)):
        carry = train(before, first(before), range(4))[-1]
        assert isinstance(carry[1], optax.MultiStepsState)
        assert_close(train(after, carry, range(4, 8))[-1], expected, rtol=3e-6, atol=1e-7)


def test_a_smaller_k_takes_effect_at_once():
    opt = multi_steps(seeing(), 8)
    params, state = train(opt, first(opt), range(5))[-1]
    _, state = multi_steps(seeing(), 2).update(params, state, params)
    assert (int(state.mini_step), int(state.gradient_step)) == (0, 1)


@third_party
def test_a_number_of_numpy_is_the_same_k():
    programs = set()
    for k in (1, np.int64(1)):
        opt = multi_steps(ADAM(), k)
        params, state = first(opt)
        programs.add(str(jax.make_jaxpr(opt.update)(params, state)))
    assert len(programs) == 1


# One inner update in k ----------------------------------------------------------------


def test_the_inner_update_runs_only_on_the_mini_step_that_emits():
    ran = []
    note = lambda updates: jax.debug.callback(lambda: ran.append(1), ordered=False)
    opt = multi_steps(seeing(note), 4)
    train(opt, first(opt), range(9))
    jax.effects_barrier()
    assert len(ran) == 2


def test_without_jit_the_inner_update_is_not_traced():
    """A conditional has new branches at every step, and would compile each time."""
    traced = []
    see = lambda updates: traced.append(isinstance(updates["w"], jax.core.Tracer))
    opt = multi_steps(seeing(see), 3)
    state = opt.init(PARAMS)
    for number in range(6):
        updates, state = opt.update(PARAMS, state, PARAMS)
        emits = number % 3 == 2
        assert (not traced[-1], float(updates["w"][0])) == (emits, emits)


# Types --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("param", "asked", "expected"),
    [
        (BF16, F32, F32),
        (BF16, None, BF16),
        (F32, BF16, BF16),
        (F64, F32, F64),
        (C64, F32, C64),
        (I32, F32, F32),
    ],
    ids=str,
)
def test_dtype_of_the_accumulator(param, asked, expected):
    with set_x64(True):
        opt = multi_steps(optax.sgd(0.1), 2, accumulator_dtype=asked)
        assert opt.init(jnp.ones(3, param)).acc_grads.dtype == expected


def test_float64_gradients_that_a_float32_accumulator_rounds():
    with set_x64(True):
        params, grads = jnp.zeros(2, F32), jnp.ones(2, F64)
        opt = multi_steps(optax.sgd(0.1), 2)
        match = r"the 64-bit gradients updates to .* write accumulator_dtype=jnp\.float64"
        counts, ints = jnp.zeros(2, I32), multi_steps(seeing(), 2)
        ints.update(jnp.ones(2, jnp.int64), ints.init(counts), counts)  # without a word
        with pytest.warns(DtypeGuardWarning, match=match) as caught:
            for _ in range(2):
                opt.update(grads, opt.init(params), params)
        assert [warning.filename for warning in caught] == [__file__]
        opt = multi_steps(optax.sgd(0.1), 2, accumulator_dtype=F64)
        updates, state = opt.update(grads, opt.init(params), params)
        assert (updates.dtype, state.acc_grads.dtype) == (F32, F64)


@third_party
@pytest.mark.parametrize(
    ("has_grad", "mean", "wrap"),
    [
        ((0, 0, 1), True, jax.jit),
        ((0, 1, 0), False, lambda update: update),
        ((0, 0, 0), True, jax.jit),
        ((0, 0, 0), True, lambda update: update),
    ],
)
def test_a_gradient_that_is_none_counts_as_zero(has_grad, mean, wrap):
    """Eagerly and jitted, and if it is None on all mini-steps too."""
    params = {"w": jnp.full(3, 0.5, BF16), "b": jnp.ones(2, F32), "n": jnp.ones(2, I32)}
    opt = multi_steps(
        optax.chain(optax.trace(0.9), optax.add_decayed_weights(0.1)), 3, use_grad_mean=mean
    )
    state = zero_state = opt.init(params)
    step = wrap(opt.update)
    for has in (*has_grad, 1, 1, 1):
        grads = {"w": jnp.full(3, 3, BF16) if has else None, "b": jnp.ones(2), "n": None}
        zeros = grads | {"w": jnp.full(3, 3 * has, BF16)}
        updates, state = step(grads, state, params)
        expected, zero_state = step(zeros, zero_state, params)
        assert_close((updates, state), (expected, zero_state), rtol=1e-2)
        assert updates["n"] is None
    assert float(updates["w"][0]) != 0


def test_params_that_are_no_numbers_and_a_state_of_python_numbers():
    """As `eqx.partition` leaves them, and as a loader gives it back."""
    params = {"w": jnp.ones(3), "key": jax.random.key(0), "f": jnp.sin}
    opt = multi_steps(seeing(), 2)
    state = opt.init(params)._replace(mini_step=1, gradient_step=0)
    updates, new = opt.update({"w": jnp.ones(3), "key": None, "f": None}, state, params)
    assert types(new) == types(opt.init(params))
    assert (updates["w"].tolist(), int(new.gradient_step)) == ([0.5] * 3, 1)


def test_without_any_gradient_there_is_nothing_to_skip():
    opt = multi_steps(seeing(), 2, should_skip_update_fn=optax.skip_not_finite)
    state = opt.init(PARAMS)
    _, new = opt.update({"w": None}, state, PARAMS)
    assert types(new) == types(state)
    assert int(new.mini_step) == 1


# Extra args ---------------------------------------------------------------------------


def test_the_inner_update_gets_the_extra_args_of_the_mini_step_that_emits():
    def update(updates, state, params=None, *, value, value_fn, note="none"):
        assert (value_fn, note) == (jnp.sum, "passed on")
        return updates, value

    inner = optax.GradientTransformationExtraArgs(lambda p: jnp.zeros((), F32), update)
    opt, seen = optax.chain(optax.identity(), multi_steps(inner, 3)), []
    params, state = first(opt)
    for value in range(6):
        _, state = opt.update(
            params, state, params, value=F32(value), value_fn=jnp.sum, note="passed on"
        )
        seen.append(float(state[1].inner_opt_state))
    assert seen == [0, 0, 2, 2, 2, 5]


# Transformations of JAX ---------------------------------------------------------------


@third_party
def test_vmap_over_states_of_different_mini_steps():
    opt = multi_steps(ADAM(), 3)
    history = train(opt, first(opt), range(4))
    params, states = tree_util.tree_map(lambda *leaves: jnp.stack(leaves), *history)
    step = jax.jit(lambda params, state: opt.update(make_params(), state, params))
    together = jax.jit(jax.vmap(step))(params, states)
    for i, carry in enumerate(history):
        row = tree_util.tree_map(lambda leaf, i=i: leaf[i], together)
        assert_close(row, step(*carry), rtol=1e-5, atol=1e-7)
    assert sorted(map(int, together[1].mini_step)) == [0, 1, 2, 2]


@third_party
def test_derivative_through_a_scan():
    """The branch is traced there, and JAX cannot transpose a loop."""

    def after(start, rate):
        opt = multi_steps(optax.adam(rate), 2)

        def body(carry, _):
            params, state = carry
            updates, state = opt.update(jnp.sin(params), state, params)
            return (params + updates, state), None

        return lax.scan(body, (start, opt.init(start)), None, length=4)[0][0]

    check_grads(jax.jit(after), (jnp.array([1.0, 2.0]), F32(0.1)), 1, rtol=2e-2, eps=1e-2)
