"""The rules of the contract, each on the smallest optimizer that breaks it bare."""

import functools
import inspect
import re

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import tree_util

from dtypeguard import (
    DtypeDriftError,
    DtypeGuardWarning,
    Policy,
    guard,
    multi_steps,
    record,
)
from tests.support.dtypes import BF16, F16, F32, I32
from tests.support.helpers import assert_same, in_optax, types
from tests.support.one_leaf import (
    NARROW,
    PARAMS,
    dict_leaf,
    either_policy,
    one_leaf,
    one_update,
    transformation,
    widen,
)

# Rules 1 and 2: the state and the updates --------------------------------------------

# The first leaf, what an update makes of it, and what has to come back for it.
DRIFTS = {
    "float32_average": (jnp.ones(3, BF16), lambda leaf: leaf.astype(F32) / F32(2), 0.5),
    "bool_becomes_int": (jnp.asarray(False), lambda leaf: jnp.asarray(2, I32), True),
    "int_becomes_bool": (I32(0), lambda leaf: jnp.asarray(True), 1),
    "narrower_counter": (I32(0), lambda leaf: jnp.asarray(-3, jnp.int16), -3),
    "weakly_typed": (F32(0), lambda leaf: jnp.asarray(1.0), 1),
    "Python_number": (I32(0), lambda leaf: 1, 1),
    "NumPy_number": (F16(0), lambda leaf: np.float32(1), 1),
    "float8": (jnp.float8_e4m3fn(0), lambda leaf: leaf.astype(F32) + F32(1), 1),
    "int4": (jnp.int4(0), lambda leaf: leaf.astype(I32) + I32(1), 1),
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_state_keeps_its_types(drift):
    first, change, value = DRIFTS[drift]
    opt = one_leaf(lambda params: first, change)
    state, _, new_state = one_update(opt)
    assert types(state) != types(new_state)
    state, _, new_state = one_update(guard(opt))
    assert types(state) == types(new_state)
    assert isinstance(new_state.leaf, jax.Array)
    assert np.all(np.asarray(new_state.leaf) == value)


def test_the_record_is_the_state_that_came_in():
    opt = guard(dict_leaf(lambda _: jnp.zeros((), F32), lambda leaf, _: leaf + 1))
    for dtype in (F16, BF16, F32):
        _, state = opt.update(PARAMS, {"leaf": jnp.zeros((), dtype)})
        assert state["leaf"].dtype == dtype


def test_updates_come_in_the_dtypes_of_the_params():
    params = NARROW | {"b": jnp.ones(2, F32), "c": jnp.ones(2, F16)}
    grads = tree_util.tree_map(lambda p: p.astype(F32), params)
    assert types(one_update(widen(), params, grads)[1]) != types(params)
    assert types(one_update(guard(widen()), params, grads)[1]) == types(params)
    weak = {"w": jnp.asarray(1.0)}  # stays so
    assert guard(transformation()).update(weak, (), weak)[0]["w"] is weak["w"]


def test_without_params_updates_keep_their_own_dtypes_and_any_shape():
    opt = guard(widen())
    grads = {"w": jnp.ones((2, 3), BF16), "b": jnp.ones(2, F16)}
    for none in ((), (None,)):
        updates, _ = opt.update(grads, opt.init(grads), *none)
        assert types(updates) == types(grads)
    flat = transformation(lambda u, s, p=None: ({"w": u["w"].ravel()}, s))
    assert guard(flat).update({"w": jnp.ones((2, 3))}, ())[0]["w"].shape == (6,)


def test_none_gradients_leave_their_state_alone():
    """As `optax.trace` does since Optax 0.2.5, the state is None where they are."""
    opt = guard(transformation(lambda u, s, p=None: (u, u), lambda params: params))
    params = NARROW | {"frozen": jnp.ones(2, BF16)}
    updates, state = opt.update(PARAMS | {"frozen": None}, opt.init(params), params)
    assert types(state) == types(params)
    assert updates["frozen"] is None
    assert updates["w"].dtype == BF16


def test_params_that_are_no_arrays_and_float0_pass():
    masked, float0 = optax.MaskedNode(), np.zeros(2, jax.dtypes.float0)
    params = NARROW | {"n": None, "m": masked, "i": jnp.ones(2, I32)}
    grads = params | {"i": float0}
    double = lambda u: u if u.dtype == jax.dtypes.float0 else u.astype(F32) * F32(2)
    opt = guard(transformation(lambda u, s, p=None: (tree_util.tree_map(double, u), s)))
    updates, _ = opt.update(grads, (), params)
    assert updates["w"].dtype == BF16
    assert (updates["n"], updates["m"]) == (None, masked)
    assert updates["i"] is float0
    # Of other trees: where a param is no array, the gradient's dtype counts.
    updates, _ = opt.update(grads | {"n": NARROW["w"], "m": None}, (), params)
    assert updates["w"].dtype == updates["n"].dtype == BF16


@pytest.mark.parametrize("policy", [Policy(), Policy(updates_dtype=F32)], ids=str)
@pytest.mark.parametrize("param", [len, "relu", jax.random.key(0)], ids=["f", "s", "key"])
@pytest.mark.parametrize("gradient", [None, jnp.ones(2)], ids=["none", "array"])
def test_where_a_param_is_no_array_any_update_passes(policy, param, gradient):
    params, given = NARROW | {"n": param}, PARAMS | {"n": gradient}
    opt = guard(transformation(lambda u, s, p=None: (u | {"n": s["n"]}, s)), policy=policy)
    for update in (param, jnp.zeros(2, BF16)):
        updates, _ = opt.update(given, {"n": update}, params)
        assert updates["n"] is update
        assert updates["w"].dtype == (policy.updates_dtype or BF16)


# Rule 3: transparent --------------------------------------------------------------------


@pytest.mark.third_party
def test_state_is_the_inner_state():
    bare = optax.chain(optax.zero_nans(), optax.adamw(1e-3))
    opt = guard(bare)
    assert_same(bare.init(PARAMS), opt.init(PARAMS))
    _, state = opt.update(PARAMS, bare.init(PARAMS), PARAMS)
    assert_same(bare.update(PARAMS, opt.init(PARAMS), PARAMS)[1], state)
    if in_optax("tree_utils.tree_get"):
        assert optax.tree_utils.tree_get(state, "count") == 1
    assert_same(
        optax.tree_map_params(opt, lambda leaf: leaf + 1, opt.init(PARAMS)),
        optax.tree_map_params(bare, lambda leaf: leaf + 1, bare.init(PARAMS)),
    )


@pytest.mark.third_party
def test_multi_steps_object():
    accumulation = optax.MultiSteps(optax.adam(1e-3), 2)
    opt = guard(accumulation)
    state = opt.init(PARAMS)
    for has_updated in (False, True):
        _, state = opt.update(PARAMS, state, PARAMS)
        assert accumulation.has_updated(state) == has_updated


def test_guard_twice_is_guard_once():
    opt = guard(widen())
    assert guard(opt) is opt
    assert guard(guard)(opt) is opt  # a factory that returns a guarded one
    loud = guard(opt, policy=Policy(on_drift="error"))
    with pytest.raises(DtypeDriftError, match=re.escape("updates['w']")):
        loud.update(NARROW, loud.init(NARROW), NARROW)


def test_what_wraps_a_guarded_update_is_guarded_by_itself():
    opt = guard(transformation())
    wrapped = functools.wraps(opt.update)(lambda *args: widen().update(*args))
    updates, _ = guard(opt._replace(update=wrapped)).update(NARROW, (), NARROW)
    assert types(updates) == types(NARROW)


class Subclass(optax.GradientTransformationExtraArgs):
    """For users to ask for."""


@either_policy
def test_a_subclass_of_init_and_update_keeps_its_type(policy):
    guarded = guard(Subclass(*widen()), policy=policy)
    assert type(guarded) is Subclass
    assert guard(guarded) is guarded
    updates, _ = guarded.update(NARROW, guarded.init(NARROW), NARROW)
    assert updates["w"].dtype == BF16


@pytest.mark.parametrize(
    "make",
    [
        lambda: guard(optax.adam(1e-3)),
        lambda: guard(optax.adam)(1e-3),
        lambda: guard(optax.adam(1e-3), policy=Policy(state_dtype={"*mu*": BF16})),
        lambda: multi_steps(optax.adam(1e-3), 2),
    ],
)
def test_what_a_guard_closes_over_hashes_and_is_equal_in_another_made_alike(make):
    """Optimistix hands the closures of its optimizer to jit, as static arguments."""
    one, other = (tree_util.tree_leaves(eqxi.closure_to_pytree(make())) for _ in range(2))
    assert one == other
    assert [hash(leaf) for leaf in one] == [hash(leaf) for leaf in other]


# Factories and arguments ------------------------------------------------------------------


def test_factory_keeps_its_signature():
    def my_optimizer(learning_rate: float, *, decay: float = 0.9):
        """Docs."""
        return widen()

    plain, loud = guard(my_optimizer), guard(policy=Policy(on_drift="error"))(my_optimizer)
    for made in (plain, loud):
        assert (made.__doc__, made.__name__) == ("Docs.", "my_optimizer")
        assert inspect.signature(made) == inspect.signature(my_optimizer)
    updates, _ = plain(0.1, decay=0.5).update(NARROW, (), NARROW)
    assert types(updates) == types(NARROW)
    with pytest.raises(DtypeDriftError, match="bfloat16"):
        loud(0.1).update(NARROW, (), NARROW)


@pytest.mark.third_party
def test_factory_in_inject_hyperparams_and_a_class_as_one():
    opt = optax.inject_hyperparams(guard(optax.adam))(learning_rate=1e-3)
    state = opt.init(NARROW)
    assert set(state.hyperparams) >= {"learning_rate", "b1", "b2"}
    _, new_state = opt.update(PARAMS, state, NARROW)
    assert types(new_state.inner_state) == types(state.inner_state)
    # The factory is called in each update, and what it makes warns once.
    loud = guard(policy=Policy(on_drift="warn"))(optax.adam)
    opt = optax.inject_hyperparams(loud)(learning_rate=1e-3)
    with pytest.warns(DtypeGuardWarning, match="changed the dtype of") as caught:
        for _ in range(2):
            opt.update(PARAMS, state, NARROW)
    assert len(caught) == 1
    opt = guard(optax.MultiSteps)(optax.identity(), every_k_schedule=1)
    assert isinstance(opt, optax.GradientTransformationExtraArgs)


def test_extra_args_reach_who_takes_them():
    def update(updates, state, params=None, **extra_args):
        return updates, extra_args

    def update_value(updates, state, params=None, *, value):
        return updates, {"value": value}

    given = {"value": 1, "x": "s"}
    _, seen = guard(transformation(update)).update(PARAMS, given, **given)
    assert (seen["value"], seen["x"]) == (1, "s")
    opt = guard(optax.GradientTransformation(lambda params: (), update_value))
    assert opt.update(PARAMS, {"value": 2}, value=2, other=3)[1] == {"value": 2}
    guard(widen()).update(PARAMS, (), value=2)
    with pytest.raises(TypeError, match=r"missing 1 required keyword-only .* 'value'"):
        opt.update(PARAMS, ())


@pytest.mark.parametrize(
    "update",
    [
        lambda updates, state: (updates, state),
        lambda updates, state, *, params=None: (params, state),
        lambda updates, state, *rest: (updates, state),
        lambda *args, **kwargs: args[:2],
    ],
    ids=["two", "keyword_params", "rest", "all"],
)
def test_signatures(update):
    updates, _ = guard(transformation(update)).update(PARAMS, (), PARAMS, value=1)
    assert_same(updates, PARAMS)


@pytest.mark.third_party
def test_nothing_leaks_from_a_trace():
    with jax.checking_leaks():
        record(guard(optax.adam(1e-3)), PARAMS)
        opt = multi_steps(optax.sgd(0.1), 2)
        state = opt.init(PARAMS)
        for update in (opt.update, jax.jit(opt.update)):
            _, state = update(PARAMS, state, PARAMS)
