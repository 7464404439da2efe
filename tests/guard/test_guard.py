"""The eight rules of the contract, each on the smallest optimizer that breaks it bare."""

import functools
import inspect
import re
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import (
    assert_same,
    in_optax,
    needs_optax,
    needs_x64_scope,
    set_x64,
    types,
)
from jax import lax, tree_util

import dtypeguard
from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard

BF16, F16, F32, I32 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32


def transformation(init, update):
    """A transformation of one state leaf: `update` maps (leaf, gradients) to a new leaf."""

    def update_fn(updates, state, params=None):
        return updates, {"leaf": update(state["leaf"], updates)}

    return optax.GradientTransformation(lambda params: {"leaf": init(params)}, update_fn)


def one_update(opt, params=None, grads=None):
    params = {"w": jnp.ones(3, F32)} if params is None else params
    grads = params if grads is None else grads
    state = opt.init(params)
    updates, new_state = opt.update(grads, state, params)
    return state, updates, new_state


# Rule 1: stable -----------------------------------------------------------------------

DRIFTS = {
    "float32 average of bfloat16": (
        lambda params: jnp.zeros(3, BF16),
        lambda leaf, grads: leaf.astype(F32) * F32(0.5),
    ),
    "bool becomes int": (
        lambda params: jnp.zeros((), jnp.bool_),
        lambda leaf, grads: jnp.asarray(2, I32),
    ),
    "int becomes bool": (
        lambda params: jnp.zeros((), I32),
        lambda leaf, grads: jnp.asarray(True),
    ),
    "narrower counter": (
        lambda params: jnp.zeros((), I32),
        lambda leaf, grads: jnp.asarray(3, jnp.int16),
    ),
    "weakly typed": (
        lambda params: jnp.zeros((), F32),
        lambda leaf, grads: jnp.asarray(1.0),
    ),
    "Python scalar": (lambda params: jnp.zeros((), I32), lambda leaf, grads: 1),
    "NumPy scalar": (lambda params: jnp.zeros((), F16), lambda leaf, grads: np.float32(1)),
    "float8": (
        lambda params: jnp.zeros((), jnp.float8_e4m3fn),
        lambda leaf, grads: leaf.astype(F32),
    ),
    "int4": (lambda params: jnp.zeros((), jnp.int4), lambda leaf, grads: leaf.astype(I32)),
}


@pytest.mark.parametrize("drift", DRIFTS, ids=lambda name: name.replace(" ", "_"))
def test_state_keeps_its_types(drift):
    opt = transformation(*DRIFTS[drift])
    state, _, new_state = one_update(opt)
    with pytest.raises(AssertionError):
        assert types(state) == types(new_state)
    state, _, new_state = one_update(guard(opt))
    assert types(state) == types(new_state)
    assert isinstance(new_state["leaf"], jax.Array)


def test_cast_keeps_the_value():
    opt = guard(transformation(lambda _: jnp.zeros((), I32), lambda leaf, _: np.int16(-7)))
    assert one_update(opt)[2]["leaf"] == -7
    opt = guard(transformation(*DRIFTS["bool becomes int"]))
    assert bool(one_update(opt)[2]["leaf"])  # 2 != 0, not its lowest bit


def test_the_record_is_the_state_that_came_in():
    opt = guard(transformation(lambda _: jnp.zeros((), F32), lambda leaf, _: leaf + 1))
    for dtype in (F16, BF16, F32):
        _, state = opt.update({"w": jnp.ones(3)}, {"leaf": jnp.zeros((), dtype)})
        assert state["leaf"].dtype == dtype


@pytest.mark.parametrize("made", [0, 1.5, True, 1j, np.float16(1), np.int8(1), np.ones(2)])
def test_init_makes_strongly_typed_arrays(made):
    state = guard(transformation(lambda _: made, lambda leaf, _: leaf)).init(
        {"w": jnp.ones(3)}
    )
    leaf = state["leaf"]
    assert isinstance(leaf, jax.Array)
    assert not leaf.weak_type
    assert leaf.dtype == jnp.result_type(made)
    np.testing.assert_array_equal(leaf, made)


def keep_params():
    """As Prodigy does: the first params, and one array in two places."""

    def init(params):
        zeros = tree_util.tree_map(jnp.zeros_like, params)
        return {"params0": params, "mu": zeros, "nu": zeros}

    def update(updates, state, params=None):
        add = functools.partial(tree_util.tree_map, jnp.add)
        return updates, state | {"mu": add(state["mu"], updates)}

    return optax.GradientTransformation(init, update)


@pytest.mark.parametrize("jitted", [False, True])
def test_params_and_first_state_can_be_donated(jitted):
    def train(opt):
        params = {"w": jnp.arange(3.0), "v": jnp.ones((2, 2))}
        init = jax.jit(opt.init) if jitted else opt.init
        state = init(params)

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def step(params, state):
            updates, state = opt.update(params, state, params)
            return optax.apply_updates(params, updates), state

        for _ in range(2):
            params, state = step(params, state)
        return params

    if not jitted:  # jit copies what it gives back as it was
        with pytest.raises(Exception, match="donate"):
            train(keep_params())
    np.testing.assert_array_equal(train(guard(keep_params()))["w"], 4 * jnp.arange(3.0))


def test_first_state_does_not_share_a_buffer_through_another_array():
    params = {"w": jnp.arange(3.0)}
    opt = transformation(lambda p: jax.device_put(p["w"]), lambda leaf, _: leaf)
    pointer = params["w"].unsafe_buffer_pointer()
    assert opt.init(params)["leaf"].unsafe_buffer_pointer() == pointer
    assert guard(opt).init(params)["leaf"].unsafe_buffer_pointer() != pointer


def test_first_state_does_not_share_numpy_memory():
    params = {"w": np.arange(3, dtype=np.float32)}
    opt = guard(transformation(lambda p: p["w"], lambda leaf, _: leaf))
    state = opt.init(params)
    params["w"][:] = 7
    np.testing.assert_array_equal(state["leaf"], np.arange(3))


# Rule 2: outputs ----------------------------------------------------------------------


def widen(dtype=F32):
    cast = lambda updates, _: tree_util.tree_map(lambda u: u.astype(dtype), updates)
    return optax.stateless(cast)


def test_updates_come_in_the_dtypes_of_the_params():
    params = {"w": jnp.ones(3, BF16), "b": jnp.ones(2, F32), "c": jnp.ones(2, F16)}
    grads = tree_util.tree_map(lambda p: p.astype(F32), params)
    assert types(one_update(widen(), params, grads)[1]) != types(params)
    assert types(one_update(guard(widen()), params, grads)[1]) == types(params)


def test_without_params_updates_keep_their_own_dtypes():
    opt = guard(widen())
    grads = {"w": jnp.ones(3, BF16), "b": jnp.ones(2, F16)}
    updates, _ = opt.update(grads, opt.init(grads))
    assert types(updates) == types(grads)
    updates, _ = opt.update(grads, opt.init(grads), params=None)
    assert types(updates) == types(grads)


def test_params_by_keyword():
    opt = guard(widen())
    params, grads = {"w": jnp.ones(3, BF16)}, {"w": jnp.ones(3, F32)}
    updates, _ = opt.update(grads, opt.init(params), params=params)
    assert types(updates) == types(params)


def test_none_gradients_leave_their_state_alone():
    def trace(updates, state, params=None):  # as optax.trace since Optax 0.2.5
        add = lambda g, t: None if g is None else g + t.astype(g.dtype)
        is_none = lambda leaf: leaf is None
        updates = tree_util.tree_map(add, updates, state.trace, is_leaf=is_none)
        return updates, optax.TraceState(updates)

    params = {"w": jnp.ones(3, BF16), "frozen": jnp.ones(2, BF16)}
    grads = {"w": jnp.ones(3, F32), "frozen": None}
    bare = optax.GradientTransformation(optax.trace(0.9).init, trace)
    assert bare.update(grads, bare.init(params), params)[1].trace["frozen"] is None
    opt = guard(bare)
    state = opt.init(params)
    updates, new_state = jax.jit(opt.update)(grads, state, params)
    assert types(state) == types(new_state)
    assert updates["frozen"] is None
    assert updates["w"].dtype == BF16


def test_none_params_and_masked_nodes_and_float0_pass():
    masked = optax.MaskedNode()
    float0 = np.zeros(2, jax.dtypes.float0)
    params = {"w": jnp.ones(3, BF16), "n": None, "m": masked, "i": jnp.ones(2, I32)}
    grads = {"w": jnp.ones(3, BF16), "n": None, "m": masked, "i": float0}

    def double(updates, state, params=None):
        double = lambda u: u if u.dtype == jax.dtypes.float0 else u.astype(F32) * F32(2)
        return tree_util.tree_map(double, updates), state

    opt = guard(optax.GradientTransformation(lambda p: (), double))
    updates, _ = opt.update(grads, (), params)
    assert updates["w"].dtype == BF16
    assert updates["n"] is None
    assert updates["m"] == masked
    assert updates["i"] is float0
    by_path = {k: v for k, v in grads.items() if k != "m"} | {"m": None}
    assert opt.update(by_path, (), params)[0]["w"].dtype == BF16


@pytest.mark.third_party
def test_lookahead_updates_have_another_tree_than_the_gradients():
    fast = {"w": jnp.ones(3, BF16)}
    params = optax.LookaheadParams(fast, fast)
    opt = guard(optax.lookahead(optax.sgd(0.1), sync_period=2, slow_step_size=0.5))
    updates, _ = opt.update({"w": jnp.ones(3, F32)}, opt.init(params), params)
    assert types(updates) == types(params)


# Rule 3: transparent --------------------------------------------------------------------


@pytest.mark.third_party
def test_state_is_the_inner_state():
    params = {"w": jnp.ones(3)}
    bare = optax.chain(optax.zero_nans(), optax.adamw(1e-3))
    opt = guard(bare)
    assert_same(bare.init(params), opt.init(params))
    _, state = opt.update(params, bare.init(params), params)
    assert_same(bare.update(params, opt.init(params), params)[1], state)
    if in_optax("tree_utils.tree_get"):
        assert optax.tree_utils.tree_get(state, "count") == 1
    ones = optax.tree_map_params(opt, lambda leaf: leaf + 1, opt.init(params))
    assert_same(ones, optax.tree_map_params(bare, lambda leaf: leaf + 1, bare.init(params)))


@pytest.mark.third_party
def test_multi_steps_object():
    params = {"w": jnp.ones(3)}
    accumulation = optax.MultiSteps(optax.adam(1e-3), 2)
    opt = guard(accumulation)
    assert isinstance(opt, optax.GradientTransformationExtraArgs)
    _, state = opt.update(params, opt.init(params), params)
    assert not accumulation.has_updated(state)
    _, state = opt.update(params, state, params)
    assert accumulation.has_updated(state)


def test_guard_twice_is_guard_once():
    opt = guard(widen())
    assert guard(opt) is opt
    assert guard(guard)(opt) is opt  # a factory that returns a guarded one
    loud = guard(opt, policy=Policy(on_drift="error"))
    grads = {"w": jnp.ones(3, BF16)}
    with pytest.raises(DtypeDriftError, match=re.escape("updates['w']")):
        loud.update(grads, loud.init(grads), grads)


def test_factory_keeps_its_signature():
    @guard
    def my_optimizer(learning_rate: float, *, decay: float = 0.9):
        """Docs."""
        return widen()

    @guard(policy=Policy(on_drift="error"))
    def my_loud_optimizer(learning_rate: float, *, decay: float = 0.9):
        return widen()

    assert my_optimizer.__doc__ == "Docs."
    assert my_optimizer.__name__ == "my_optimizer"
    expected = "(learning_rate: float, *, decay: float = 0.9)"
    assert str(inspect.signature(my_optimizer)) == expected
    assert str(inspect.signature(my_loud_optimizer)) == expected
    grads = {"w": jnp.ones(3, BF16)}
    updates, _ = my_optimizer(0.1, decay=0.5).update(grads, (), grads)
    assert types(updates) == types(grads)
    with pytest.raises(DtypeDriftError, match="bfloat16"):
        my_loud_optimizer(0.1).update(grads, (), grads)


@pytest.mark.third_party
def test_factory_in_inject_hyperparams():
    params = {"w": jnp.ones(3, BF16)}
    opt = optax.inject_hyperparams(guard(optax.adam))(learning_rate=1e-3)
    state = opt.init(params)
    assert set(state.hyperparams) >= {"learning_rate", "b1", "b2"}
    _, new_state = opt.update({"w": jnp.ones(3, F32)}, state, params)
    assert types(new_state.inner_state) == types(state.inner_state)


def test_class_as_factory():
    opt = guard(optax.MultiSteps)(optax.identity(), every_k_schedule=1)
    assert isinstance(opt, optax.GradientTransformationExtraArgs)


@pytest.mark.parametrize("wrong", [3, "adam", (1, 2), {"init": 1}, 1e-3])
def test_wrong_inner(wrong):
    with pytest.raises(TypeError, match=re.escape(f"guard got {wrong!r}. Give it")):
        guard(wrong)


def test_factory_of_something_else():
    with pytest.raises(TypeError, match=r"returned 3. A guarded function must return"):
        guard(lambda: 3)()


# Extra args -----------------------------------------------------------------------------


def test_extra_args_reach_who_takes_them():
    seen = {}

    def update(updates, state, params=None, **extra_args):
        seen.update(extra_args)
        return updates, state

    def update_value(updates, state, params=None, *, value):
        seen.update(value=value)
        return updates, state

    grads = {"w": jnp.ones(3)}
    init = lambda params: ()
    guard(optax.GradientTransformationExtraArgs(init, update)).update(
        grads, (), value=1, x="s"
    )
    assert seen == {"value": 1, "x": "s"}
    seen.clear()
    opt = guard(optax.GradientTransformation(init, update_value))
    opt.update(grads, (), value=2, other=3)
    assert seen == {"value": 2}
    guard(widen()).update(grads, (), value=2)
    with pytest.raises(
        TypeError, match="missing 1 required keyword-only argument: 'value'"
    ):
        opt.update(grads, ())


# Rule 5: blind to the x64 flag ---------------------------------------------------------


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

    return optax.GradientTransformationExtraArgs(init, update)


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

    opt = guard(optax.GradientTransformationExtraArgs(lambda params: (), update))
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
def test_callable_module_is_data_unless_named_a_function():
    class Model(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            return self.weight * x

    def update(updates, state, params=None, *, model, value_fn):
        assert isinstance(model, Model)
        assert value_fn(jnp.ones(())).dtype == F32
        return updates, state

    opt = guard(optax.GradientTransformationExtraArgs(lambda params: (), update))
    with set_x64(True):
        model = Model(jnp.ones((), jnp.float64))
        two = jnp.asarray(2.0, jnp.float64)
        opt.update({"w": jnp.ones(2, F32)}, (), model=model, value_fn=lambda x: model(two))


def test_code_written_for_x64_alone_gets_the_flag():
    def update(updates, state, params=None):
        wide = lambda u: lax.convert_element_type(u, jnp.float64)
        factor = np.ones(2) if jax.config.jax_enable_x64 else np.ones(2, np.int32)
        return tree_util.tree_map(lambda u: lax.mul(wide(u), factor), updates), state

    opt = guard(optax.GradientTransformation(lambda params: (), update))
    grads = {"w": jnp.ones(2, F32)}
    with set_x64(True):
        with warnings.catch_warnings():  # JAX tells that float64 is not to be had
            warnings.simplefilter("ignore", UserWarning)
            updates, _ = opt.update(grads, ())
        assert jax.config.jax_enable_x64
    assert_same(updates, grads)


def test_flag_is_restored_after_an_error():
    def update(updates, state, params=None):
        raise RuntimeError("mine")

    opt = guard(optax.GradientTransformation(lambda params: (), update))
    with set_x64(True):
        with pytest.raises(RuntimeError, match="mine"):
            opt.update({"w": jnp.ones(2, F32)}, ())
        assert jax.config.jax_enable_x64


# Rule 6: rescue -------------------------------------------------------------------------


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

    return optax.GradientTransformationExtraArgs(init, update)


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

    opt = guard(optax.GradientTransformation(init, update))
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

    opt = guard(optax.GradientTransformation(lambda params: (), update))
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

    opt = guard(optax.GradientTransformationExtraArgs(lambda params: (), update))
    params = {"w": jnp.ones(3, BF16)}
    value_fn = lambda params: jnp.sum(params["w"]).astype(BF16)
    with pytest.warns(DtypeGuardWarning, match="float32"):
        opt.update(params, (), params, value_fn=value_fn)


def test_a_failed_rescue_raises_the_first_error():
    calls = []

    def update(updates, state, params=None):
        calls.append(updates["w"].dtype)
        raise TypeError(f"attempt {len(calls)}")

    opt = guard(optax.GradientTransformation(lambda params: (), update))
    with pytest.raises(TypeError, match="attempt 1") as error:
        opt.update({"w": jnp.ones(3, BF16)}, ())
    assert type(error.value) is TypeError
    assert error.value.__context__ is None
    assert calls == [BF16, F32]


def test_no_rescue_where_all_floats_are_of_one_wide_dtype():
    calls = []

    def update(updates, state, params=None):
        calls.append(1)
        raise TypeError("mine")

    opt = guard(optax.GradientTransformation(lambda params: (), update))
    with pytest.raises(TypeError, match="mine"):
        opt.update({"w": jnp.ones(3, F32)}, ())
    assert len(calls) == 1


# Rule 7: nothing lost silently ------------------------------------------------------------

REFUSED = {
    "float into an int counter": (
        lambda _: jnp.zeros((), I32),
        lambda leaf, _: jnp.asarray(0.5, F32),
        "state['leaf']  int32[] -> float32[]  return jnp.round(x).astype(jnp.int32)",
        lambda x: jnp.round(x).astype(jnp.int32),
    ),
    "complex into real": (
        lambda _: jnp.zeros(2, F32),
        lambda leaf, _: jnp.zeros(2, jnp.complex64),
        "state['leaf']  float32[2] -> complex64[2]  return jnp.real(x).astype(jnp.float32)",
        lambda x: jnp.real(x).astype(jnp.float32),
    ),
    "int into float": (
        lambda _: jnp.zeros((), F32),
        lambda leaf, _: jnp.asarray(1, I32),
        "state['leaf']  float32[] -> int32[]  return x.astype(jnp.float32)",
        lambda x: x.astype(F32),
    ),
    "real into complex": (
        lambda _: jnp.zeros((), jnp.complex64),
        lambda leaf, _: jnp.asarray(1, F32),
        "state['leaf']  complex64[] -> float32[]  return x.astype(jnp.complex64)",
        lambda x: x.astype(jnp.complex64),
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=lambda name: name.replace(" ", "_"))
def test_casts_stay_within_a_kind(case):
    init, update, line, remedy = REFUSED[case]
    with pytest.raises(DtypeDriftError, match=re.escape(line)) as error:
        one_update(guard(transformation(init, update)))
    assert isinstance(error.value, TypeError)
    assert 'Policy(casting="unsafe")' in str(error.value)
    one_update(guard(transformation(init, lambda leaf, grads: remedy(update(leaf, grads)))))
    unsafe = guard(transformation(init, update), policy=Policy(casting="unsafe"))
    state, _, new_state = one_update(unsafe)
    assert types(state) == types(new_state)


def test_every_offending_leaf_is_named_and_only_those():
    def update(updates, state, params=None):
        new = {"count": jnp.ones((), F32), "mu": jnp.ones(4), "ok": state["ok"].astype(F32)}
        return tree_util.tree_map(lambda u: u * 1j, updates), new

    init = lambda params: {
        "count": jnp.zeros((), I32), "mu": jnp.zeros(3), "ok": jnp.zeros(3, BF16)
    }  # fmt: skip
    opt = guard(optax.GradientTransformation(init, update))
    with jax.numpy_dtype_promotion("standard"), pytest.raises(DtypeDriftError) as error:
        jax.eval_shape(lambda p: opt.update(p, opt.init(p), p), {"w": jnp.ones(3)})
    lines = str(error.value).splitlines()
    assert lines[0] == "update returned 3 leaves that cannot be brought back:"
    assert [line.split()[0] for line in lines[1:4]] == [
        "state['count']", "state['mu']", "updates['w']"
    ]  # fmt: skip
    assert re.fullmatch(
        r" *state\['mu'\] +float32\[3\] -> float32\[4\] +return .*\(3,\)", lines[2]
    )
    assert len(lines) == 6
    assert lines[5] == "More on this: 'Guard an optimizer' in the docs of dtypeguard."


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({"a": 1}, {"a": 1, "b": 2.0}, ["state['b']  (absent) -> float32[],weak"]),
        ({"a": 1, "b": 2.0}, {"a": 1}, ["state['b']  float32[] -> (absent)"]),
        ((1, 2), [1, 2], ["state  PyTreeDef((*, *)) -> PyTreeDef([*, *])"]),
        ({"a": 1}, {"a": None}, ["state['a']  int32[] -> (absent)"]),
    ],
)
def test_a_changed_tree_is_an_error(before, after, lines):
    before = tree_util.tree_map(jnp.asarray, before)
    after = tree_util.tree_map(jnp.asarray, after)
    opt = guard(
        optax.GradientTransformation(lambda p: before, lambda u, s, p=None: (u, after))
    )
    with pytest.raises(DtypeDriftError, match="changed the tree of its state") as error:
        one_update(opt)
    for line in lines:
        assert line in str(error.value)
        assert "return the tree that came in" in str(error.value)


def test_updates_that_belong_to_no_param_are_an_error():
    add = optax.stateless(lambda updates, _: updates | {"new": jnp.ones(2)})
    with pytest.raises(DtypeDriftError, match=re.escape("updates['new']  (absent) ->")):
        one_update(guard(add))


def test_updates_may_broadcast_but_not_grow_a_param():
    scalar = optax.stateless(lambda updates, _: {"w": jnp.ones(())})
    assert one_update(guard(scalar))[1]["w"].shape == ()
    grow = optax.stateless(lambda updates, _: {"w": jnp.ones((2, 3))})
    with pytest.raises(DtypeDriftError, match=re.escape("return it in shape (3,)")):
        one_update(guard(grow))


@pytest.mark.parametrize("empty", [(), None, {}])
def test_any_empty_state_goes_for_another(empty):
    updates, state = guard(widen()).update({"w": jnp.ones(3, BF16)}, empty)
    assert updates["w"].dtype == BF16
    assert state == empty
    assert type(state) is type(empty)  # a scan takes no EmptyState for a ()


def test_what_is_no_array_passes_through():
    key = jax.random.key(0)
    others = {"key": key, "f": abs, "s": "text", "none": None, "masked": optax.MaskedNode()}
    opt = guard(optax.GradientTransformation(lambda p: others, lambda u, s, p=None: (u, s)))
    state, _, new_state = one_update(opt)
    assert state["f"] is abs
    assert state["s"] == "text"
    assert tree_util.tree_structure(new_state) == tree_util.tree_structure(others)
    assert (
        jax.random.key_data(new_state["key"]).tolist() == jax.random.key_data(key).tolist()
    )


def test_an_array_that_becomes_no_array_is_an_error():
    opt = guard(transformation(lambda _: jnp.zeros((), F32), lambda leaf, _: "text"))
    with pytest.raises(DtypeDriftError, match=re.escape("float32[] -> str")):
        one_update(opt)


# Policy ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"casting": "safe"}, {"on_drift": "ignore"}, {"casting": None}]
)
def test_policy_is_checked(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(
        ValueError, match=re.escape(f"Policy({name}={value!r}): write {name}=")
    ):
        Policy(**wrong)


@pytest.mark.third_party
def test_on_drift_names_each_leaf_once():
    params, grads = {"w": jnp.ones(3, BF16)}, {"w": jnp.ones(3, F32)}
    opt = guard(optax.trace(0.9), policy=Policy(on_drift="warn"))
    state = opt.init(params)
    with pytest.warns(DtypeGuardWarning) as caught:
        jax.jit(opt.update)(grads, state, params)
        opt.update(grads, state, params)
    (warning,) = caught
    assert warning.filename == __file__
    _, *rows, rounds = str(warning.message).splitlines()
    assert [row.split()[0] for row in rows] == ["state.trace['w']", "updates['w']"]
    assert rounds.startswith("A cast to bfloat16 rounds: dtypeguard.audit_precision ")
    loud = guard(optax.trace(0.9), policy=Policy(on_drift="error"))
    with pytest.raises(DtypeDriftError, match="changed the dtype of 2 leaves"):
        loud.update(grads, state, params)
    quiet = tree_util.tree_map(lambda g: g.astype(BF16), grads)
    loud.update(quiet, state, params)
    assert types(loud.update(quiet, state, params)[1]) == types(state)


def test_an_inner_guards_error_is_not_rescued():
    calls = []

    def update(updates, state, params=None):
        calls.append(1)
        raise DtypeDriftError("inner")

    opt = guard(optax.GradientTransformation(lambda params: (), update))
    with pytest.raises(DtypeDriftError, match="inner"):
        opt.update({"w": jnp.ones(3, BF16)}, ())
    assert calls == [1]


# Rule 8: one compilation ----------------------------------------------------------------


@pytest.mark.third_party
@pytest.mark.parametrize(
    "factory",
    [
        pytest.param(lambda: optax.lbfgs(), id="lbfgs", marks=needs_optax("lbfgs")),
        pytest.param(
            lambda: optax.scale_by_zoom_linesearch(5),
            id="zoom",
            marks=needs_optax("scale_by_zoom_linesearch"),
        ),
    ],
)
def test_a_train_step_compiles_once(factory):
    def compilations(opt):
        params = {"w": jnp.linspace(0, 1, 5)}
        loss = lambda params: jnp.sum(params["w"] ** 2)
        state = opt.init(params)

        @jax.jit
        def step(params, state):
            value, grads = jax.value_and_grad(loss)(params)
            updates, state = opt.update(
                grads, state, params, value=value, grad=grads, value_fn=loss
            )
            return optax.apply_updates(params, updates), state

        for _ in range(4):
            params, state = step(params, state)
        return step._cache_size()

    assert compilations(factory()) == 2
    assert compilations(guard(factory())) == 1


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", dtypeguard.__version__)
