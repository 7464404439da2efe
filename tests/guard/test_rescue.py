"""The second attempt, in one wider dtype, of an update that fails in mixed ones."""

import jax
import jax.numpy as jnp
import optax
import pytest
from helpers import assert_same, set_x64, types
from jax import lax, tree_util
from one_leaf import transformation

from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard

BF16, F16, F32, I32 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32
PARAMS = {"w": jnp.ones(3, F32)}
NARROW = {"w": jnp.ones(3, BF16)}
zeros_like = lambda params: tree_util.tree_map(jnp.zeros_like, params)


def halved(total):
    """Control flow that assumes float32, as in Optax's line searches."""
    return lax.fori_loop(0, 2, lambda _, x: x * F32(0.5), total)


@pytest.mark.third_party
def test_rescue_runs_in_float32_and_says_so():
    params, seen = {"w": jnp.full(3, 0.5, BF16)}, []

    def init(params):
        own = {"fixed": jnp.zeros((), F32), "count": jnp.zeros((), I32)}
        return {"follows": zeros_like(params), **own, "int8": jnp.zeros(2, jnp.int8)}

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
    init = lambda params: {"int8": jnp.zeros(2, jnp.int8), "bf16": jnp.zeros(2, BF16)}
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
@pytest.mark.parametrize("params", [NARROW, PARAMS], ids=["narrow", "wide"])
def test_rescue_brings_along_results_of_callables_and_narrow_extra_args(params):
    def update(updates, state, params=None, *, value_fn, value):
        halved(value_fn(params))
        step = lambda _, x: x + updates["w"][0]
        return {"w": updates["w"] * lax.fori_loop(0, 2, step, value)}, state

    value_fn = lambda params: jnp.sum(params["w"]).astype(BF16)
    extra_args = {"value_fn": value_fn, "value": BF16(0)}
    with pytest.warns(DtypeGuardWarning, match="float32"):
        updates, _ = guard(transformation(update)).update(params, (), params, **extra_args)
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


@pytest.mark.parametrize("second", [TypeError, ValueError])
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
