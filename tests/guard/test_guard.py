"""The eight rules of the contract, each on the smallest optimizer that breaks it bare."""

import functools
import inspect
import re
import subprocess
import sys

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_same, child_variables, in_optax, needs_optax, types
from jax import tree_util
from one_leaf import dict_leaf, one_update, transformation, widen

from dtypeguard import DtypeDriftError, Policy, guard, multi_steps

BF16, F16, F32, I32 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32
PARAMS = {"w": jnp.ones(3, F32)}


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
    opt = dict_leaf(*DRIFTS[drift])
    state, _, new_state = one_update(opt)
    with pytest.raises(AssertionError):
        assert types(state) == types(new_state)
    state, _, new_state = one_update(guard(opt))
    assert types(state) == types(new_state)
    assert isinstance(new_state["leaf"], jax.Array)


def test_cast_keeps_the_value():
    opt = guard(dict_leaf(lambda _: jnp.zeros((), I32), lambda leaf, _: np.int16(-7)))
    assert one_update(opt)[2]["leaf"] == -7
    opt = guard(dict_leaf(*DRIFTS["bool becomes int"]))
    assert bool(one_update(opt)[2]["leaf"])  # 2 != 0, not its lowest bit


def test_the_record_is_the_state_that_came_in():
    opt = guard(dict_leaf(lambda _: jnp.zeros((), F32), lambda leaf, _: leaf + 1))
    for dtype in (F16, BF16, F32):
        _, state = opt.update({"w": jnp.ones(3)}, {"leaf": jnp.zeros((), dtype)})
        assert state["leaf"].dtype == dtype


# Rule 2: outputs ----------------------------------------------------------------------


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

    opt = guard(transformation(double))
    updates, _ = opt.update(grads, (), params)
    assert updates["w"].dtype == BF16
    assert updates["n"] is None
    assert updates["m"] == masked
    assert updates["i"] is float0
    by_path = {k: v for k, v in grads.items() if k != "m"} | {"m": None}
    assert opt.update(by_path, (), params)[0]["w"].dtype == BF16


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
    guard(transformation(update, init)).update(grads, (), value=1, x="s")
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

        for _ in range(3):
            params, state = step(params, state)
        return step._cache_size()

    assert compilations(factory()) == 2
    assert compilations(guard(factory())) == 1


def test_what_wraps_a_guarded_update_is_guarded_anew():
    once = guard(transformation())
    calls = []

    @functools.wraps(once.update)
    def widened(updates, state, params=None, **extra_args):
        calls.append(1)
        updates, state = once.update(updates, state, params)
        return tree_util.tree_map(lambda u: u.astype(F32), updates), state

    params = {"w": jnp.ones(3, BF16)}
    for policy in (None, Policy()):
        opt = guard(
            optax.GradientTransformationExtraArgs(once.init, widened), policy=policy
        )
        assert opt.update(params, (), params)[0]["w"].dtype == BF16
    assert len(calls) == 2


def test_a_replaced_init_is_guarded_and_kept():
    once = guard(transformation())
    for policy in (None, Policy()):
        opt = guard(once._replace(init=lambda params: {"mine": 1}), policy=policy)
        assert isinstance(opt.init(PARAMS)["mine"], jax.Array)


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
    opt = guard(transformation(update))
    updates, _ = opt.update(PARAMS, (), PARAMS, value=1)
    assert_same(updates, PARAMS)


@pytest.mark.third_party
def test_per_example_gradients_may_keep_their_shape():
    opt = guard(optax.clip(1.0))
    batch = {"w": jnp.ones((5, 3), F32)}
    updates, _ = opt.update(batch, opt.init(PARAMS), PARAMS)
    assert_same(updates, batch)


def test_params_that_are_no_arrays_leave_the_record_to_the_updates():
    widen = lambda u, s, p=None: (tree_util.tree_map(lambda x: x.astype(F32), u), s)
    params = {"w": jnp.ones(3, BF16), "f": abs, "n": None}
    grads = {"w": jnp.ones(3, BF16), "f": jnp.ones(2, BF16), "n": jnp.ones(2, BF16)}
    updates, _ = guard(transformation(widen)).update(grads, (), params)
    assert {str(leaf.dtype) for leaf in tree_util.tree_leaves(updates)} == {"bfloat16"}


def test_weak_params_keep_weak_updates():
    params = {"w": jnp.asarray(1.0)}
    updates, _ = guard(transformation()).update(params, (), params)
    assert updates["w"] is params["w"]


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


def test_without_params_an_update_may_change_its_shape():
    flat = transformation(lambda u, s, p=None: ({"w": u["w"].ravel()}, s))
    updates, _ = guard(flat).update({"w": jnp.ones((2, 3))}, ())
    assert types(updates) == {"w": ("float32", False, (6,))}


def test_importing_it_imports_no_equinox():
    program = (
        "import sys, dtypeguard, optax, jax.numpy as jnp\n"
        "params = {'w': jnp.ones(3, jnp.bfloat16)}\n"
        "opt = dtypeguard.guard(optax.adam(1e-3))\n"
        "opt.update(params, opt.init(params), params)\n"
        "dtypeguard.record(opt, params)\n"
        "assert 'equinox' not in sys.modules, 'equinox was imported'\n"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env=child_variables(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
