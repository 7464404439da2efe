"""The x64 flag: an optimizer runs as with it off, unless it needs 64 bits."""

import concurrent.futures
import functools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_same, needs_x64_scope, set_x64, types
from hlo import count_float64
from jax import lax, tree_util
from one_leaf import noting, transformation

from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard

F32 = jnp.float32
PARAMS = {"w": jnp.ones(3, F32)}


def float64_inside(seen):
    """A step whose dtypes depend on the flag: a counter's power and a fresh array."""

    def init(params):
        seen.append(jax.config.jax_enable_x64)
        return {"count": jnp.asarray(1), "norm": jnp.asarray(0.0)}

    def update(updates, state, params=None, **extra_args):
        seen.append(jax.config.jax_enable_x64)
        norm = 1 - 0.9 ** state["count"]
        scale = jnp.ones(()) / norm
        return (
            tree_util.tree_map(lambda u: u * scale.astype(u.dtype), updates),
            {"count": state["count"] + 1, "norm": norm},
        )

    return transformation(update, init)


@needs_x64_scope
@pytest.mark.third_party
def test_results_do_not_depend_on_the_flag():
    params = {"w": jnp.linspace(0, 1, 5, dtype=F32)}
    results = []
    for x64 in (False, True):
        seen = []
        opt = guard(float64_inside(seen))
        with set_x64(x64):
            state = opt.init(params)
            results.append(jax.jit(opt.update)(params, state, params))
            text = jax.jit(opt.update).lower(params, state, params).as_text()
        assert not any(seen)
        assert "f64" not in text
    assert_same(*results)
    with set_x64(True):
        bare = float64_inside([])
        assert "f64" in jax.jit(bare.update).lower(params, bare.init(params)).as_text()


@needs_x64_scope
@pytest.mark.third_party
def test_wide_inputs_keep_the_flag():
    for wide in ("params", "state", "updates"):
        seen = []
        opt = guard(float64_inside(seen))
        with set_x64(True):
            narrow = {"w": jnp.ones(2, F32)}
            state = opt.init(narrow)
            inputs = {"updates": narrow, "state": state, "params": narrow}
            to64 = lambda leaf: leaf.astype(jnp.float64 if leaf.dtype == F32 else jnp.int64)
            inputs[wide] = tree_util.tree_map(to64, inputs[wide])
            updates, new_state = opt.update(**inputs)
            assert types(new_state) == types(inputs["state"])
            assert types(updates) == types(inputs["params"])
        assert seen == [False, True], wide


@needs_x64_scope
def test_callables_run_under_the_callers_flag():
    seen = []

    def value_fn(x):
        seen.append(jax.config.jax_enable_x64)
        return x.astype(jnp.float64) * np.float64(2)

    def update(updates, state, params=None, *, value_fn, value):
        assert not jax.config.jax_enable_x64
        assert value.dtype == F32
        result = value_fn(jnp.ones((), F32))
        assert result.dtype == F32
        return tree_util.tree_map(lambda u: u + result, updates), state

    opt = guard(transformation(update))
    grads = {"w": jnp.ones(2, F32)}
    with set_x64(True):
        value = jnp.ones((), jnp.float64)
        updates, _ = jax.jit(lambda g, v: opt.update(g, (), value_fn=value_fn, value=v))(
            grads, value
        )
        assert jax.config.jax_enable_x64
    assert seen == [True]
    assert_same(updates, {"w": 3 * jnp.ones(2, F32)})


@needs_x64_scope
@pytest.mark.parametrize(
    "needs_x64",
    [
        lambda x: jnp.asarray(2**40) % 7,
        lambda x: jax.pure_callback(
            lambda x: np.asarray(x, np.float64), jax.ShapeDtypeStruct((), np.float64), x
        ),
    ],
    ids=["big_int", "callback"],
)
def test_what_works_with_x64_alone_gets_it_and_says_so(needs_x64):
    def update(updates, state, params=None):
        return tree_util.tree_map(lambda u: u * needs_x64(u[0]).astype(F32), updates), state

    opt = guard(transformation(update))
    with set_x64(True):
        bare, _ = update(PARAMS, ())
        with pytest.warns(
            DtypeGuardWarning, match="runs with x64 on, since it failed with"
        ):
            updates, _ = opt.update(PARAMS, (), PARAMS)
        assert jax.config.jax_enable_x64
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

    def at(rate, state):
        inner = (
            getattr(state, "inner_state", None) if policy.rounding != "nearest" else state
        )
        inner.hyperparams["learning_rate"] = rate
        return state

    # The types that follow do not depend on who traces, and nothing is in 64 bits.
    state = opt.init(PARAMS)
    expected = opt.update(PARAMS, at(F32(0.1), opt.init(PARAMS)), PARAMS)
    with set_x64(True):
        state = at(0.1, opt.init(PARAMS))
        eager = opt.update(PARAMS, state, PARAMS)
        jitted = jax.jit(opt.update)(PARAMS, state, PARAMS)
        assert types(eager) == types(jitted) == types(expected)
        assert count_float64(lambda u, s: opt.update(u, s, u), PARAMS, jitted[1]) == 0
        body = lambda state, _: (opt.update(PARAMS, state, PARAMS)[1], None)
        assert types(lax.scan(body, state, None, length=2)[0]) == types(expected[1])
    tree_util.tree_map(
        lambda a, b: float(jnp.max(jnp.abs(a - b))) < 1e-6 or pytest.fail(f"{a} {b}"),
        jitted[0],
        expected[0],
    )


# Whose flag it is ------------------------------------------------------------------------


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
ERRORS = [RuntimeError("mine"), TypeError("mine"), Interrupt("mine")]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", FAILING)
def test_the_flag_is_restored_on_every_path(where, error, nested):
    opt = optax.GradientTransformation(*FAILING[where](error))
    opt = guard(optax.chain(guard(opt), optax.identity())) if nested else guard(opt)
    params = {"w": jnp.ones(3, jnp.bfloat16)}  # narrow: a TypeError is rescued, in vain
    refused = where == "refused"
    expected = DtypeDriftError if refused else type(error)
    match = "return it in shape" if refused else "mine"
    for x64 in (False, True):
        with set_x64(x64):
            with pytest.raises(expected, match=match):
                opt.update(params, opt.init(params), params)
            assert jax.config.jax_enable_x64 == x64


@needs_x64_scope
def test_init_that_needs_x64_gets_it():
    opt = guard(transformation(init=lambda params: {"n": jnp.asarray(2**40)}))
    with set_x64(True), pytest.warns(DtypeGuardWarning, match="runs with x64 on"):
        assert opt.init(PARAMS)["n"] == 2**40


@needs_x64_scope
def test_python_scalars_do_not_lift_the_scope():
    seen = []
    with set_x64(True):
        _, state = guard(noting(seen)).update(PARAMS, {"lr": 0.1, "n": 1}, PARAMS)
    assert seen == [False]
    assert types(state) == {"lr": ("float32", False, ()), "n": ("int32", False, ())}


@needs_x64_scope
def test_callables_in_containers_keep_the_flag_and_jit_knows_them_again():
    flags, traces = [], []

    @functools.partial(jax.jit, static_argnames="value_fn")
    def jitted(updates, value_fn):
        traces.append(1)
        return tree_util.tree_map(lambda u: u * value_fn(u), updates)

    def update(updates, state, params=None, *, fns, value_fn):
        fns[0](updates["w"])
        return jitted(updates, value_fn), state

    def function(x):
        flags.append(jax.config.jax_enable_x64)
        return jnp.sum(x)

    opt = guard(transformation(update))
    with set_x64(True):
        for _ in range(3):
            opt.update(PARAMS, (), PARAMS, fns=(function,), value_fn=function)
    assert set(flags) == {True}
    assert len(traces) == 1
