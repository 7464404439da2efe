"""The x64 flag: an optimizer runs as with it off, unless it needs 64 bits."""

import concurrent.futures
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_same, needs_x64_scope, set_x64, types
from hlo import count_float64
from jax import lax, tree_util
from one_leaf import transformation

from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard

F32, F64 = jnp.float32, jnp.float64
PARAMS = {"w": jnp.ones(3, F32)}
needs_x64 = lambda x: jnp.asarray(2**40) % 7


def float64_inside(seen):
    """A step whose dtypes depend on the flag: a counter's power and a fresh array."""

    def init(params):
        seen.append(jax.config.jax_enable_x64)
        return {"count": jnp.asarray(1), "norm": jnp.asarray(0.0)}

    def update(updates, state, params=None, **extra_args):
        seen.append(jax.config.jax_enable_x64)
        norm = 1 - 0.9 ** state["count"]
        scale = jnp.ones(()) / norm
        scaled = tree_util.tree_map(lambda u: u * scale.astype(u.dtype), updates)
        return scaled, {"count": state["count"] + 1, "norm": norm}

    return transformation(update, init)


@needs_x64_scope
@pytest.mark.third_party
def test_results_do_not_depend_on_the_flag():
    seen, results = [], []
    opt = guard(float64_inside(seen))
    for x64 in (False, True):
        with set_x64(x64):
            state = opt.init(PARAMS)
            results.append(jax.jit(opt.update)(PARAMS, state, PARAMS))
            assert count_float64(opt.update, PARAMS, state, PARAMS) == 0
    assert not any(seen)
    assert_same(*results)
    with set_x64(True):
        bare = float64_inside([])
        assert count_float64(bare.update, PARAMS, bare.init(PARAMS)) > 0


@needs_x64_scope
@pytest.mark.third_party
@pytest.mark.parametrize("wide", ["params", "state", "updates"])
def test_wide_inputs_keep_the_flag(wide):
    seen = []
    opt = guard(float64_inside(seen))
    with set_x64(True):
        inputs = {"updates": PARAMS, "state": opt.init(PARAMS), "params": PARAMS}
        to64 = lambda leaf: leaf.astype(F64 if leaf.dtype == F32 else jnp.int64)
        inputs[wide] = tree_util.tree_map(to64, inputs[wide])
        updates, new_state = opt.update(**inputs)
        assert types(new_state) == types(inputs["state"])
        assert types(updates) == types(inputs["params"])
    assert seen == [False, True]


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
            extra_args = {"fns": (value_fn,), "value_fn": value_fn, "value": value}
            updates, _ = opt.update(PARAMS, (), PARAMS, **extra_args)
    assert set(flags) == {True}
    assert len(traces) == 1  # the wrapped function is equal to that of the last call
    assert_same(updates, {"w": jnp.full(3, 6, F32)})


# What needs x64 ---------------------------------------------------------------------------


@needs_x64_scope
@pytest.mark.parametrize(
    "number",
    [
        needs_x64,
        lambda x: jax.pure_callback(
            lambda x: np.asarray(x, np.float64), jax.ShapeDtypeStruct((), np.float64), x
        ),
    ],
    ids=["big_int", "callback"],
)
def test_what_works_with_x64_alone_gets_it_and_says_so(number):
    def update(updates, state, params=None):
        return tree_util.tree_map(lambda u: u * number(u[0]).astype(F32), updates), state

    init = lambda params: needs_x64(params)
    opt = guard(transformation(update, init))
    with set_x64(True):
        bare, _ = update(PARAMS, ())
        message = "runs with x64 on, since it failed with"
        with pytest.warns(DtypeGuardWarning, match=message):
            updates, _ = opt.update(PARAMS, (), PARAMS)
        assert jax.config.jax_enable_x64
        with pytest.warns(DtypeGuardWarning, match=message):
            assert guard(transformation(init=init)).init(PARAMS) == needs_x64(PARAMS)
    assert_same(updates, bare)


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


def fails_with(error):
    def fail(*args):
        raise error

    return fail


FAILING = {
    "init": lambda error: transformation(init=fails_with(error)),
    "update": lambda error: transformation(fails_with(error)),
}
ERRORS = [error("mine") for error in (ValueError, TypeError, DtypeDriftError, Interrupt)]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", FAILING)
def test_the_flag_is_restored_on_every_path(where, error, nested):
    opt = FAILING[where](error)
    opt = guard(optax.chain(guard(opt), optax.identity())) if nested else guard(opt)
    params = {"w": jnp.ones(3, jnp.bfloat16)}  # narrow: a TypeError is rescued, in vain
    for x64 in (False, True):
        with set_x64(x64):
            with pytest.raises(type(error), match="mine"):
                opt.update(params, opt.init(params), params)
            assert jax.config.jax_enable_x64 == x64
