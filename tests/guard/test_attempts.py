"""Attempts: with x64 off, unless it takes 64 bits, and in one dtype, if mixed ones fail."""

import concurrent.futures
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax, tree_util

from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard, prodigy
from tests.support.dtypes import BF16, F16, F32, F64, I8
from tests.support.helpers import assert_close, assert_same, needs_x64_scope, set_x64, types
from tests.support.hlo import count_float64
from tests.support.one_leaf import NARROW, PARAMS, transformation


@needs_x64_scope
@pytest.mark.parametrize("wide", ["params", "state", "updates", "number", "none"])
def test_wide_inputs_keep_the_flag_and_others_hide_it(wide):
    seen = []

    def update(updates, state, params=None, number=0):
        seen.append(jax.config.jax_enable_x64)
        return updates, state

    opt = guard(transformation(update))
    with set_x64(True):
        inputs = dict.fromkeys(("updates", "state", "params"), PARAMS)
        wide_input = jnp.asarray(2**40) if wide == "number" else {"w": jnp.ones(3, F64)}
        inputs |= {wide: wide_input} if wide != "none" else {}
        updates, new_state = opt.update(**inputs)
        assert types(new_state) == types(inputs["state"])
        assert types(updates) == types(inputs["params"])
        assert seen == [wide != "none"]


@needs_x64_scope
def test_callables_run_under_the_callers_flag():
    flags, traces = [], []

    def value_fn(x):
        flags.append(jax.config.jax_enable_x64)
        return jnp.sum(x).astype(F64) * np.float64(2)

    @functools.partial(jax.jit, static_argnames="value_fn")
    def jitted(updates, value_fn):
        traces.append(1)
        return tree_util.tree_map(lambda u: u * value_fn(u), updates)

    def update(updates, state, params=None, *, fns, value_fn, value):
        assert not jax.config.jax_enable_x64
        assert value.dtype == fns[0](updates["w"]).dtype == F32
        return jitted(updates, value_fn), state

    opt = guard(transformation(update))
    with set_x64(True):
        value = jnp.ones((), F64)
        for _ in range(3):
            updates, _ = opt.update(
                PARAMS, (), PARAMS, fns=(value_fn,), value_fn=value_fn, value=value
            )
    assert set(flags) == {True}
    assert len(traces) == 1  # the wrapped function is equal to that of the last call
    assert_same(updates, {"w": jnp.full(3, 6, F32)})


# What needs x64 ---------------------------------------------------------------------------


@needs_x64_scope
def test_what_works_with_x64_alone_gets_it_and_says_so():
    needs_x64 = lambda x: jnp.asarray(2**40) % 7
    update = lambda u, s, p=None: ({"w": u["w"] * needs_x64(u).astype(F32)}, s)
    opt = guard(transformation(update))
    with set_x64(True):
        message = "runs with x64 on, since it failed with"
        with pytest.warns(DtypeGuardWarning, match=message):
            updates, _ = opt.update(PARAMS, (), PARAMS)
        assert_same(updates, update(PARAMS, ())[0])
        with pytest.warns(DtypeGuardWarning, match=message):
            assert guard(transformation(init=needs_x64)).init(PARAMS) == needs_x64(PARAMS)


@needs_x64_scope
@pytest.mark.parametrize("first", [2**40, np.int64(2**40), np.full(9, 2**40)], ids=str)
def test_integers_that_need_64_bits_get_them(first):
    opt = guard(transformation(init=lambda params: first))
    with set_x64(True):
        with pytest.warns(DtypeGuardWarning, match="1099511627776.* does not fit into"):
            state = opt.init(PARAMS)
        assert_same(state, jnp.asarray(np.asarray(first)))
    with pytest.raises(OverflowError, match=r"^state is .* turn on jax_enable_x64"):
        opt.init(PARAMS)


@needs_x64_scope
@pytest.mark.parametrize("number", [0.5, 2**40])
@pytest.mark.parametrize("shape", [(), (9,)])
def test_64_bit_arrays_that_an_optimizer_holds_are_not_narrowed(number, shape):
    with set_x64(True):
        held = jnp.broadcast_to(number, shape)
        opt = guard(transformation(init=lambda params: held))
        assert_same(opt.init(PARAMS), held)
        assert not opt.init(PARAMS).weak_type


@needs_x64_scope
@pytest.mark.third_party
@pytest.mark.parametrize(
    "policy", [Policy(), Policy(compute_dtype=F32, rounding="stochastic")], ids=str
)
def test_a_python_number_in_the_state_is_a_scalar_under_jit(policy):
    opt = guard(optax.inject_hyperparams(optax.adam)(1e-3), policy=policy)

    def first(rate):
        state = opt.init(PARAMS)
        inner = state if policy.rounding == "nearest" else state.inner_state
        inner.hyperparams["learning_rate"] = rate
        return state

    # The types that follow do not depend on who traces, and nothing is in 64 bits.
    expected = opt.update(PARAMS, first(F32(0.1)), PARAMS)
    with set_x64(True):
        state = first(0.1)
        eager = opt.update(PARAMS, state, PARAMS)
        jitted = jax.jit(opt.update)(PARAMS, state, PARAMS)
        assert types(eager) == types(jitted) == types(expected)
        assert count_float64(lambda u, s: opt.update(u, s, u), PARAMS, jitted[1]) == 0
        body = lambda state, _: (opt.update(PARAMS, state, PARAMS)[1], None)
        assert types(lax.scan(body, state, None, length=2)[0]) == types(expected[1])
    np.testing.assert_allclose(jitted[0]["w"], expected[0]["w"], rtol=1e-6)


# Whose flag it is ------------------------------------------------------------------------


@needs_x64_scope
def test_threads_keep_their_own_flags():
    """One guarded transformation for all: what a thread sees inside is never another's."""
    inside, together = [], threading.Barrier(8)

    def update(updates, state, params=None):
        inside.append(jax.config.jax_enable_x64)
        together.wait()  # all threads are inside
        inside.append(jax.config.jax_enable_x64)
        return updates, state

    opt = guard(transformation(update))

    def work(x64):
        with set_x64(x64):
            for _ in range(5):
                opt.update(PARAMS, (), PARAMS)
                assert jax.config.jax_enable_x64 == x64

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [False, True] * 4))
    assert inside == [False] * 80


class Interrupt(BaseException):
    """As KeyboardInterrupt: no Exception."""


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("error", [ValueError, TypeError, DtypeDriftError, Interrupt])
def test_the_flag_is_restored_on_every_path(error, x64):
    def fail(*args):
        raise error("mine")

    opt = guard(optax.chain(guard(transformation(fail, fail)), optax.identity()))
    with set_x64(x64):
        for call in (opt.update, lambda updates, _, params: opt.init(params)):
            with pytest.raises(error, match="mine"):
                call(NARROW, ((), ()), NARROW)
            assert jax.config.jax_enable_x64 == x64


# In a wider dtype ---------------------------------------------------------------------


def halved(total):
    """Control flow that assumes float32, as in Optax's line searches."""
    return lax.fori_loop(0, 2, lambda _, x: x * F32(0.5), total)


@pytest.mark.third_party
def test_rescue_runs_in_float32_and_says_so():
    params, seen = {"w": jnp.full(3, 0.5, BF16)}, []

    def init(params):
        own = {"fixed": jnp.zeros((), F32), "count": jnp.zeros((), jnp.int32)}
        return {
            "follows": tree_util.tree_map(jnp.zeros_like, params),
            **own,
            "int8": jnp.zeros(2, I8),
        }

    def update(updates, state, params=None, **extra_args):
        seen.append(types((updates, state, params, extra_args)))
        total = halved(jnp.sum(updates["w"]))
        return tree_util.tree_map(lambda u: u * total, updates), state

    with pytest.raises(TypeError, match="carry"):
        update(params, init(params))
    # What a policy would report is not: the guard widened it.
    opt = guard(transformation(update, init), policy=Policy(on_drift="error"))
    state = opt.init(params)
    with pytest.warns(DtypeGuardWarning, match="was run in float32 instead: .*carry"):
        updates, new_state = opt.update(params, state, params, value=jnp.ones((), BF16))
    assert types(new_state) == types(state)
    assert_same(updates, {"w": jnp.full(3, 0.5 * 0.375, BF16)})
    widened = tree_util.tree_map(lambda p: p.astype(F32), params)
    wide_state = state | {"follows": widened}  # and no other leaf of it
    assert seen[2] == types((widened, wide_state, widened, {"value": jnp.ones((), F32)}))
    opt.update(params, state, params)  # said once


def test_rescue_leaves_alone_what_does_not_follow_the_params():
    init = lambda params: {"int8": jnp.zeros(2, I8), "bf16": jnp.zeros(2, BF16)}
    loaded = init(None) | {"bf16": jnp.zeros(2, F16)}

    def update(updates, state, params=None):
        assert types(state) in (types(init(params)), types(loaded))
        if {leaf.dtype for leaf in tree_util.tree_leaves(params)} != {jnp.dtype(F32)}:
            raise TypeError("not here")
        return updates, state

    params = {"w": jnp.ones(3, jnp.float8_e4m3fn), "b": jnp.ones(3, F16)}
    for state in (init(params), loaded):
        opt = guard(transformation(update, init))
        with pytest.warns(DtypeGuardWarning, match="not here"):
            updates, new_state = opt.update(params, state, params)
        assert types(updates) == types(params)
        assert types(new_state) == types(state)


def test_rescue_widens_a_state_that_came_in_narrower_than_the_params():
    """It is of a checkpoint in bfloat16, say."""

    def update(updates, state, params=None):
        if state["w"].dtype != F64:
            raise TypeError("a narrow state")
        return updates, state

    opt = guard(transformation(update, init=dict))
    with set_x64(True), pytest.warns(DtypeGuardWarning, match="was run in float64"):
        params = {"w": jnp.ones(3, F64)}
        updates, new_state = opt.update(params, NARROW, params)
    assert types((updates, new_state)) == types((params, NARROW))


@pytest.mark.parametrize("dtype", [BF16, jnp.float8_e4m3fn], ids=str)
def test_rescue_where_jax_does_not_promote(dtype):
    """Under strict promotion, and of 8-bit floats ever: an error that is no TypeError."""
    params, opt = {"w": jnp.ones(3, dtype)}, optax.trace(0.5)
    with jax.numpy_dtype_promotion("strict" if dtype == BF16 else "standard"):
        with pytest.raises(ValueError, match="implicit dtype promotion"):
            opt.update(PARAMS, opt.init(params), params)
        opt = guard(opt)
        state = opt.init(params)
        with pytest.warns(DtypeGuardWarning, match="float32 instead: .*promotion"):
            updates, new_state = opt.update(PARAMS, state, params)
    assert types(updates) == types(params)
    assert_same(new_state, state._replace(trace=params))


@pytest.mark.third_party
@pytest.mark.parametrize("params", [NARROW, PARAMS], ids=["narrow", "wide"])
def test_rescue_brings_along_results_of_callables_and_narrow_extra_args(params):
    def update(updates, state, params=None, *, value_fn, value):
        halved(value_fn(params))
        step = lambda _, x: x + updates["w"][0]
        return {"w": updates["w"] * lax.fori_loop(0, 2, step, value)}, state

    value_fn = lambda params: jnp.sum(params["w"]).astype(BF16)
    with pytest.warns(DtypeGuardWarning, match="float32"):
        updates, _ = guard(transformation(update)).update(
            params, (), params, value_fn=value_fn, value=BF16(0)
        )
    assert updates["w"].tolist() == [2, 2, 2]


# The first error ------------------------------------------------------------------------


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(
    ("error", "grads", "params"),
    [
        (TypeError("mine"), PARAMS, None),
        (TypeError("mine"), PARAMS | {"f": None}, PARAMS | {"f": jax.nn.relu}),
        (DtypeDriftError("inner guard's"), NARROW, None),
    ],
    ids=["one wide dtype", "and a function", "refused by a guard inside"],
)
def test_no_second_attempt(error, grads, params, x64):
    calls = []

    def update(updates, state, params=None):
        calls.append(1)
        raise error

    with set_x64(x64), pytest.raises(type(error), match=str(error)):
        guard(transformation(update)).update(grads, (), params)
    assert len(calls) == 1 + (x64 and grads is not NARROW)  # the attempt with x64 on


@pytest.mark.parametrize("second", [TypeError, ValueError, DtypeDriftError])
def test_a_failed_rescue_raises_the_first_error(second):
    calls = []

    def update(updates, state, params=None):
        calls.append(updates["w"].dtype)
        raise TypeError("first") if len(calls) == 1 else second("second")

    with pytest.raises(TypeError, match="first") as error:
        guard(transformation(update)).update(NARROW, ())
    assert type(error.value) is TypeError
    assert error.value.__context__ is None
    assert calls == [BF16, F32]


@needs_x64_scope
@jax.numpy_dtype_promotion("standard")
@pytest.mark.parametrize("name", ["adam", "lbfgs", "prodigy"])
def test_float64_stays_float64_with_x64_off(name):
    """The arrays were made in a region with x64 on, and the guard runs in one."""
    opt = prodigy() if name == "prodigy" else getattr(optax, name)(0.1)
    with set_x64(True):
        params, grads = {"w": jnp.arange(3.0) / 3}, {"w": jnp.ones(3) / 7}
    extra = {"value": 1.0, "grad": grads, "value_fn": lambda p: (p["w"] ** 2).sum()}
    opt = guard(opt)

    def two_updates(grads, params):
        _, state = opt.update(grads, opt.init(params), params, **extra)
        return opt.update(grads, state, params, **extra)

    with set_x64(True):
        wanted = two_updates(grads, params)
    assert wanted[0]["w"].dtype == F64
    assert_same(two_updates(grads, params), wanted)
    assert_close(jax.jit(two_updates)(grads, params), wanted, rtol=1e-12)
