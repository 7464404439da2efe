"""The second attempt, in one wider dtype, of an update that fails in mixed ones."""

import warnings

import jax
import jax.numpy as jnp
import optax
import pytest
from helpers import assert_same, set_x64, types
from jax import lax, tree_util
from one_leaf import one_update, transformation

from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard

BF16, F16, F32, I32 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32
PARAMS = {"w": jnp.ones(3, F32)}


def needs_float32(seen=None):
    """Its control flow assumes float32, as optax's line searches do."""

    def init(params):
        zeros = tree_util.tree_map(jnp.zeros_like, params)
        return {"follows": zeros, "fixed": jnp.zeros((), F32), "count": jnp.zeros((), I32)}

    def update(updates, state, params=None, **extra_args):
        if seen is not None:
            seen.append((types((updates, state, params)), types(extra_args)))
        total = sum(jnp.sum(u) for u in tree_util.tree_leaves(updates))
        total = lax.fori_loop(0, 2, lambda _, x: x * F32(0.5), total)
        return tree_util.tree_map(lambda u: u * total, updates), state

    return transformation(update, init)


@pytest.mark.third_party
def test_rescue_runs_in_float32_and_says_so():
    params = {"w": jnp.full(3, 0.5, BF16)}
    with pytest.raises(TypeError, match="carry"):
        one_update(needs_float32(), params)
    seen = []
    opt = guard(needs_float32(seen))
    state = opt.init(params)
    with pytest.warns(DtypeGuardWarning, match="was run in float32 instead: .*carry"):
        updates, new_state = opt.update(params, state, params, value=jnp.ones((), BF16))
    assert types(new_state) == types(state)
    assert_same(updates, {"w": jnp.full(3, 0.5 * 0.375, BF16)})
    widened = tree_util.tree_map(lambda p: p.astype(F32), params)
    wide_state = state | {"follows": widened}
    assert seen[1] == (
        types((widened, wide_state, widened)),
        types({"value": jnp.ones((), F32)}),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.update(params, state, params)  # said once


def test_rescue_leaves_alone_what_does_not_follow_the_params():
    def init(params):
        return {"int8": jnp.zeros(2, jnp.int8), "bf16": jnp.zeros(2, BF16)}

    def update(updates, state, params=None):
        assert types(state) == types(init(params))
        if params["w"].dtype != F32:
            raise TypeError("not here")
        return updates, state

    opt = guard(transformation(update, init))
    with pytest.warns(DtypeGuardWarning, match="not here"):
        one_update(opt, {"w": jnp.ones(3, F16)})


def test_rescue_of_8_bit_floats():
    params = {"w": jnp.ones(3, jnp.float8_e4m3fn), "b": jnp.ones(3, BF16)}
    seen = []

    def update(updates, state, params=None):
        seen.append({leaf.dtype for leaf in tree_util.tree_leaves(params)})
        if len(seen[-1]) > 1:
            raise TypeError("two dtypes")
        return updates, state

    opt = guard(transformation(update))
    with pytest.warns(DtypeGuardWarning, match="two dtypes"):
        updates, _ = opt.update(params, (), params)
    assert seen[1] == {jnp.dtype(F32)}
    assert types(updates) == types(params)


@pytest.mark.parametrize("dtype", [BF16, jnp.float8_e4m3fn], ids=str)
def test_rescue_where_jax_does_not_promote(dtype):
    """Under strict promotion, and of 8-bit floats ever: an error that is no TypeError."""
    params, grads = {"w": jnp.ones(3, dtype)}, {"w": jnp.ones(3, F32)}
    opt = optax.trace(0.5)
    promotion = "strict" if dtype == BF16 else "standard"
    with jax.numpy_dtype_promotion(promotion):
        with pytest.raises(ValueError, match="implicit dtype promotion"):
            opt.update(grads, opt.init(params), params)
        opt = guard(opt)
        state = opt.init(params)
        with pytest.warns(DtypeGuardWarning, match="float32 instead: .*promotion"):
            updates, new_state = opt.update(grads, state, params)
    assert types(updates) == types(params)
    assert_same(new_state, state._replace(trace={"w": jnp.ones(3, dtype)}))


@pytest.mark.third_party
def test_rescue_brings_results_of_callables_along():
    def update(updates, state, params=None, *, value_fn):
        value = value_fn(params)
        lax.fori_loop(0, 2, lambda _, x: x * F32(0.5), value)
        return updates, state

    opt = guard(transformation(update))
    params = {"w": jnp.ones(3, BF16)}
    value_fn = lambda params: jnp.sum(params["w"]).astype(BF16)
    with pytest.warns(DtypeGuardWarning, match="float32"):
        opt.update(params, (), params, value_fn=value_fn)


def test_no_rescue_where_all_floats_are_of_one_wide_dtype():
    calls = []

    def update(updates, state, params=None):
        calls.append(1)
        raise TypeError("mine")

    opt = guard(transformation(update))
    with pytest.raises(TypeError, match="mine"):
        opt.update({"w": jnp.ones(3, F32)}, ())
    assert len(calls) == 1


@pytest.mark.parametrize("x64", [False, True])
def test_an_inner_guards_error_is_not_rescued(x64):
    calls = []

    def update(updates, state, params=None):
        calls.append(1)
        raise DtypeDriftError("inner")

    opt = guard(transformation(update))
    with set_x64(x64), pytest.raises(DtypeDriftError, match="inner"):
        opt.update({"w": jnp.ones(3, BF16)}, ())
    assert calls == [1]


@pytest.mark.parametrize("second", [TypeError, ValueError])
def test_a_failed_rescue_raises_the_first_error(second):
    calls = []

    def update(updates, state, params=None):
        calls.append(updates["w"].dtype)
        raise TypeError("first") if len(calls) == 1 else second("second")

    with pytest.raises(TypeError, match="first") as error:
        guard(transformation(update)).update({"w": jnp.ones(3, BF16)}, ())
    assert type(error.value) is TypeError
    assert error.value.__context__ is None
    assert calls == [BF16, F32]


def test_functions_among_the_params_are_no_floats():
    def update(updates, state, params=None):
        raise TypeError("the real error")

    calls = {"w": jnp.ones(3), "f": jax.nn.relu}
    with pytest.raises(TypeError, match="the real error"):
        guard(transformation(update)).update({"w": jnp.ones(3), "f": None}, (), calls)


def test_rescue_with_functions_among_the_params():
    def update(updates, state, params=None):
        return updates, lax.fori_loop(0, 2, lambda _, x: x * F32(0.5), state)

    params = {"w": jnp.ones(3, BF16), "f": jax.nn.relu}
    opt = guard(transformation(update, lambda params: jnp.zeros((), params["w"].dtype)))
    with jax.numpy_dtype_promotion("standard"), pytest.warns(DtypeGuardWarning):
        _, state = opt.update({"w": jnp.ones(3, BF16), "f": None}, opt.init(params), params)
    assert state.dtype == BF16


def test_what_a_rescue_widened_is_no_drift():
    def update(updates, state, params=None):
        lax.fori_loop(0, 2, lambda _, x: x * F32(0.5), jnp.sum(updates["w"]))
        return updates, state

    params = {"w": jnp.ones(3, BF16)}
    opt = guard(transformation(update, lambda p: p), policy=Policy(on_drift="error"))
    with jax.numpy_dtype_promotion("standard"), pytest.warns(DtypeGuardWarning):
        updates, state = opt.update(params, opt.init(params), params)
    assert types(updates) == types(state) == types(params)


def test_rescue_without_params_goes_by_the_updates():
    def update(updates, state, params=None):
        lax.fori_loop(0, 2, lambda _, x: x * F32(0.5), jnp.sum(updates["w"]))
        assert state["w"].dtype == F32
        return updates, state

    grads = {"w": jnp.ones(3, BF16)}
    opt = guard(transformation(update, lambda p: tree_util.tree_map(jnp.zeros_like, p)))
    with jax.numpy_dtype_promotion("standard"), pytest.warns(DtypeGuardWarning):
        _, state = opt.update(grads, opt.init(grads))
    assert state["w"].dtype == BF16


def test_a_narrow_extra_arg_alone_calls_for_a_rescue():
    def update(updates, state, params=None, *, value):
        step = lambda _, x: x + updates["w"][0]
        return {"w": updates["w"] * lax.fori_loop(0, 2, step, value)}, state

    with jax.numpy_dtype_promotion("standard"), pytest.warns(DtypeGuardWarning):
        updates, _ = guard(transformation(update)).update(PARAMS, (), PARAMS, value=BF16(0))
    assert updates["w"].tolist() == [2, 2, 2]
