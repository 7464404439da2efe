"""What a cold review broke: each of these failed once, or passed with its line removed."""

import functools
import inspect
import re
import warnings

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_same, needs_x64_scope, set_x64, types
from jax import lax, tree_util

from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard, multi_steps

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32
PARAMS = {"w": jnp.ones(3, F32)}


def transformation(update, init=lambda params: ()):
    return optax.GradientTransformationExtraArgs(init, update)


def keep(updates, state, params=None, **extra_args):
    return updates, state


# Kinds ----------------------------------------------------------------------------------


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


def test_an_array_that_becomes_a_string_is_not_told_to_round():
    opt = guard(
        transformation(lambda u, s, p=None: (u, "text"), lambda p: jnp.zeros((), I32))
    )
    with pytest.raises(DtypeDriftError) as error:
        opt.update(PARAMS, opt.init(PARAMS), PARAMS)
    assert "int32[] -> str  return an array of jnp.int32" in str(error.value)
    assert "unsafe" not in str(error.value)


def test_what_has_another_librarys_dtype_passes():
    class Foreign:
        dtype = "no such dtype"

    foreign = Foreign()
    opt = guard(transformation(keep, lambda params: {"x": foreign}))
    assert opt.update(PARAMS, opt.init(PARAMS))[1]["x"] is foreign


# The x64 scope --------------------------------------------------------------------------


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
def test_init_that_needs_x64_gets_it():
    opt = guard(transformation(keep, lambda params: {"n": jnp.asarray(2**40)}))
    with set_x64(True), pytest.warns(DtypeGuardWarning, match="runs with x64 on"):
        assert opt.init(PARAMS)["n"] == 2**40


@needs_x64_scope
@pytest.mark.parametrize("number", [jnp.asarray, np.int64], ids=["jax", "numpy"])
def test_64_bit_integers_among_extra_args_keep_their_value(number):
    def update(updates, state, params=None, *, n):
        return tree_util.tree_map(lambda u: u * (n % 1000).astype(F32), updates), state

    with set_x64(True):
        updates, _ = guard(transformation(update)).update(
            PARAMS, (), PARAMS, n=number(2**40 + 3)
        )
    assert updates["w"][0] == (2**40 + 3) % 1000


@needs_x64_scope
def test_extra_args_of_a_64_bit_update_are_not_narrowed():
    def update(updates, state, params=None, *, value):
        assert value.dtype == jnp.float64
        return updates, state

    with set_x64(True):
        wide = {"w": jnp.ones(3, jnp.float64)}
        guard(transformation(update)).update(
            wide, (), wide, value=jnp.ones((), jnp.float64)
        )


@needs_x64_scope
@pytest.mark.parametrize("dtype", ["complex128", "float64"])
def test_wide_extra_args_and_params(dtype):
    seen = []

    def update(updates, state, params=None, *, value):
        seen.append((jax.config.jax_enable_x64, value.dtype.itemsize))
        return updates, state

    with set_x64(True):
        value = jnp.ones((), dtype)
        guard(transformation(update)).update(PARAMS, (), PARAMS, value=value)
        wide = {"w": value}
        guard(transformation(update)).update(wide, (), wide, value=value)
        counts = {"w": jnp.ones(3, jnp.uint64)}
        guard(transformation(update)).update(PARAMS, counts, PARAMS, value=value)
    size = np.dtype(dtype).itemsize
    assert seen == [(False, size // 2), (True, size), (True, size)]


@needs_x64_scope
def test_python_scalars_do_not_lift_the_scope():
    seen = []

    def update(updates, state, params=None):
        seen.append(jax.config.jax_enable_x64)
        return updates, state

    with set_x64(True):
        _, state = guard(transformation(update)).update(PARAMS, {"lr": 0.1, "n": 1}, PARAMS)
    assert seen == [False]
    assert types(state) == {"lr": ("float32", False, ()), "n": ("int32", False, ())}


@pytest.mark.parametrize(
    "make", [lambda: jax.random.key(0), lambda: jax.random.PRNGKey(0), lambda: F32(0.5)]
)
def test_what_an_optimizer_holds_for_every_init_outlasts_a_donated_state(make):
    held = make()
    opt = guard(transformation(keep, lambda params: {"a": held, "b": held}))
    step = jax.jit(lambda state: opt.update(PARAMS, state)[1], donate_argnums=0)
    for _ in range(2):
        assert_same(step(opt.init(PARAMS)), {"a": make(), "b": make()})


@needs_x64_scope
@pytest.mark.parametrize("first", [0.5, 3, np.float64(0.5), np.zeros(2), np.int64(3)])
def test_numbers_that_init_returns_are_as_with_x64_off(first):
    seen = []

    def update(updates, state, params=None):
        seen.append(jax.config.jax_enable_x64)
        return updates, state

    opt = guard(transformation(update, lambda params: {"first": first}))
    narrow = opt.init(PARAMS)
    with set_x64(True):
        state = opt.init(PARAMS)
        opt.update(PARAMS, state, PARAMS)
    assert_same(state, narrow)
    assert seen == [False]


@needs_x64_scope
@pytest.mark.parametrize("first", [2**40, np.int64(2**40), np.full(9, 2**40)], ids=str)
def test_integers_that_need_64_bits_get_them(first):
    opt = guard(transformation(keep, lambda params: first))
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
        opt = guard(transformation(keep, lambda params: held))
        assert_same(opt.init(PARAMS), held)
        assert not opt.init(PARAMS).weak_type


@needs_x64_scope
def test_a_numpy_float64_is_no_python_float_though_one_of_its_kind():
    opt = guard(transformation(keep, lambda params: params["rate"]))
    with set_x64(True):
        wide = {"rate": np.float64(0.5)}
        updates, state = opt.update({"rate": np.float32(1)}, wide["rate"], wide)
        assert updates["rate"].dtype == state.dtype == jnp.float64


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


def test_an_inner_guards_error_does_not_lift_the_scope():
    seen = []

    def update(updates, state, params=None):
        seen.append(1)
        raise DtypeDriftError("inner")

    with set_x64(True), pytest.raises(DtypeDriftError, match="inner"):
        guard(transformation(update)).update(PARAMS, ())
    assert seen == [1]


# Which transformation is a guarded one --------------------------------------------------


def test_what_wraps_a_guarded_update_is_guarded_anew():
    once = guard(transformation(keep))
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
    once = guard(transformation(keep))
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
    opt = guard(optax.GradientTransformation(lambda params: (), update))
    updates, _ = opt.update(PARAMS, (), PARAMS, value=1)
    assert_same(updates, PARAMS)


def test_policy_of_another_type():
    with pytest.raises(TypeError, match=re.escape("guard got policy='error'. Write a")):
        guard(transformation(keep), policy="error")


# Rescue and drift -----------------------------------------------------------------------


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


def test_any_second_error_leaves_the_first():
    def update(updates, state, params=None):
        raise TypeError("first") if updates["w"].dtype == BF16 else ValueError("second")

    with pytest.raises(TypeError, match="first"):
        guard(transformation(update)).update({"w": jnp.ones(3, BF16)}, ())


def test_a_weak_leaf_is_a_drift_unless_it_came_in_weak():
    weak = lambda updates, state, params=None: (updates, jnp.asarray(1.0))
    opt = guard(transformation(weak), policy=Policy(on_drift="error"))
    with pytest.raises(DtypeDriftError, match=re.escape("float32[] -> float32[],weak")):
        opt.update(PARAMS, jnp.ones((), F32))
    opt.update(PARAMS, jnp.asarray(1.0))
    opt.update(PARAMS, 1.0)


@pytest.mark.third_party
def test_said_once_by_a_factory_that_is_called_in_every_update():
    loud = guard(optax.trace, policy=Policy(on_drift="warn"))
    opt = optax.inject_hyperparams(loud)(decay=0.9)
    params, grads = {"w": jnp.ones(3, BF16)}, {"w": jnp.ones(3, F32)}
    state = opt.init(params)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            _, state = opt.update(grads, state, params)
    assert [w.category for w in caught] == [DtypeGuardWarning]


def test_a_warning_made_an_error_is_said_again():
    opt = guard(
        transformation(
            lambda u, s, p=None: (u, s.astype(F32)), lambda p: jnp.zeros((), BF16)
        ),
        policy=Policy(on_drift="warn"),
    )
    for _ in range(2):
        with pytest.raises(DtypeGuardWarning, match="1 leaf"):
            opt.update(PARAMS, opt.init(PARAMS))


# Trees and shapes -----------------------------------------------------------------------


@pytest.mark.third_party
def test_per_example_gradients_may_keep_their_shape():
    opt = guard(optax.clip(1.0))
    batch = {"w": jnp.ones((5, 3), F32)}
    updates, _ = opt.update(batch, opt.init(PARAMS), PARAMS)
    assert_same(updates, batch)


def test_unsafe_does_not_cast_shapes():
    grow = transformation(
        lambda u, s, p=None: (u, jnp.zeros(4)), lambda p: jnp.zeros(3, I32)
    )
    opt = guard(grow, policy=Policy(casting="unsafe"))
    with pytest.raises(
        DtypeDriftError, match=re.escape("return it in shape (3,)")
    ) as error:
        opt.update(PARAMS, opt.init(PARAMS))
    assert "unsafe" not in str(error.value)


def test_an_empty_part_of_a_state_goes_for_another_but_may_not_grow():
    state = ((), {"count": jnp.zeros((), I32)})
    opt = guard(transformation(lambda u, s, p=None: (u, (optax.EmptyState(), s[1]))))
    assert opt.update(PARAMS, state)[1][0] == optax.EmptyState()
    grow = guard(transformation(lambda u, s, p=None: (u, {"new": jnp.ones(2)})))
    with pytest.raises(
        DtypeDriftError, match=re.escape("state['new']  (absent) -> float32[2]")
    ):
        grow.update(PARAMS, ())


def test_params_that_are_no_arrays_leave_the_record_to_the_updates():
    widen = lambda u, s, p=None: (tree_util.tree_map(lambda x: x.astype(F32), u), s)
    params = {"w": jnp.ones(3, BF16), "f": abs, "n": None}
    grads = {"w": jnp.ones(3, BF16), "f": jnp.ones(2, BF16), "n": jnp.ones(2, BF16)}
    updates, _ = guard(transformation(widen)).update(grads, (), params)
    assert {str(leaf.dtype) for leaf in tree_util.tree_leaves(updates)} == {"bfloat16"}


def test_weak_params_keep_weak_updates():
    params = {"w": jnp.asarray(1.0)}
    updates, _ = guard(transformation(keep)).update(params, (), params)
    assert updates["w"] is params["w"]


class Twins:
    """A node that gives both its children the same key."""

    def __init__(self, *children):
        self.children = children


tree_util.register_pytree_with_keys(
    Twins,
    lambda node: ([(tree_util.GetAttrKey("x"), child) for child in node.children], None),
    lambda _, children: Twins(*children),
)


def test_leaves_of_one_path_are_told_apart():
    widen = lambda u, s, p=None: (u, tree_util.tree_map(lambda x: x.astype(F32), s))
    opt = guard(transformation(widen), policy=Policy(on_drift="error"))
    with pytest.raises(DtypeDriftError, match="2 leaves"):
        opt.update(PARAMS, Twins(jnp.ones(2, BF16), jnp.ones(3, BF16)))


def test_integer_params_are_told_to_be_left_out():
    params = {"w": jnp.ones(3, F32), "n": jnp.ones(2, I32)}
    grads = tree_util.tree_map(lambda p: p.astype(F32), params)
    with pytest.raises(
        DtypeDriftError, match=re.escape("eqx.filter(params, eqx.is_inexact")
    ):
        guard(transformation(keep)).update(grads, (), params)


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


# Found by fuzzing -----------------------------------------------------------------------


def test_a_leaf_that_vanishes_does_not_pass_for_an_empty_node():
    """It once did, and every leaf behind it was paired with the one before."""
    state = {"a": jnp.zeros((), F32), "b": jnp.zeros((), BF16)}
    for gone in (None, (), {}):
        opt = guard(transformation(lambda u, s, p=None, gone=gone: (u, {**s, "a": gone})))
        with pytest.raises(
            DtypeDriftError, match=r"state\['a'\]  float32\[\] -> \(absent\)"
        ):
            opt.update(PARAMS, state, PARAMS)


def test_an_empty_node_comes_back_as_it_came_in():
    """A scan takes no () for an EmptyState."""
    init = lambda params: {"empty": optax.EmptyState(), "x": jnp.zeros((), F32)}
    opt = guard(transformation(lambda u, s, p=None: (u, {**s, "empty": ()}), init))
    step = lambda state, _: (opt.update(PARAMS, state, PARAMS)[1], None)
    state, _ = lax.scan(step, opt.init(PARAMS), None, length=2)
    assert type(state["empty"]) is optax.EmptyState


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (jax.random.key(0), jnp.zeros((), F32)),
        (jax.random.key(0), 1.5),
        (jax.random.key(0), jax.random.key(0, impl="rbg")),
        (jax.random.key(0), jax.random.split(jax.random.key(0))),
        (jax.random.key(0), "text"),
        ("text", 1.5),
        ("text", jax.random.key(0)),
    ],
    ids=lambda leaf: f"{leaf.dtype}{leaf.shape}" if hasattr(leaf, "dtype") else repr(leaf),
)
def test_a_leaf_that_is_no_number_stays_what_it_is(before, after):
    opt = guard(transformation(lambda u, s, p=None: (u, (after,))))
    with pytest.raises(DtypeDriftError, match=r"state\[0\] .* return it as it came in"):
        opt.update(PARAMS, (before,), PARAMS)


@needs_x64_scope
def test_a_python_float_among_the_params_and_float64_gradients():
    """`init` counts it as float32; the second attempt has to know which leaves do."""
    params = {"a": 1.0}
    opt = guard(optax.apply_if_finite(optax.adam(1e-3), 3))
    with set_x64(True), jax.numpy_dtype_promotion("standard"):
        grads = {"a": jnp.asarray(2.0, jnp.float64)}
        state = opt.init(params)
        with pytest.warns(DtypeGuardWarning, match="was run in float64 instead"):
            updates, new_state = opt.update(grads, state, params)
    assert types(new_state) == types(state)
    np.testing.assert_allclose(updates["a"], -1e-3, rtol=1e-5)


# Lines that no test missed --------------------------------------------------------------


def test_without_params_an_update_may_change_its_shape():
    flat = transformation(lambda u, s, p=None: ({"w": u["w"].ravel()}, s))
    updates, _ = guard(flat).update({"w": jnp.ones((2, 3))}, ())
    assert types(updates) == {"w": ("float32", False, (6,))}


def test_a_weak_leaf_that_came_in_goes_out_strong():
    weak = jnp.asarray(1.0)
    assert weak.weak_type
    _, state = guard(transformation(keep)).update(PARAMS, weak, PARAMS)
    assert types(state) == ("float32", False, ())


def test_weak_updates_are_made_strong_and_are_no_drift():
    half = transformation(lambda u, s, p=None: ({"w": jnp.full(3, 0.5)}, s))
    updates, _ = guard(half, policy=Policy(on_drift="error")).update(PARAMS, (), PARAMS)
    assert types(updates) == types(PARAMS)
    assert types(half.update(PARAMS, ())[0]) != types(PARAMS)


def test_another_tree_beside_a_none_gradient_is_named():
    grows = transformation(lambda u, s, p=None: (u, {**s, "b": s["a"]}))
    with pytest.raises(DtypeDriftError, match=r"state\['b'\]  \(absent\) -> int32"):
        guard(grows).update({"w": None}, {"a": I32(0)}, PARAMS)


@needs_x64_scope
def test_a_model_named_as_a_function_is_called_as_one():
    seen = []

    @tree_util.register_pytree_node_class
    class Model:
        def __call__(self, params):
            seen.append(jax.config.jax_enable_x64)

        def tree_flatten(self):
            return (), None

        @classmethod
        def tree_unflatten(cls, _, leaves):
            return cls()

    def update(updates, state, params=None, *, value_fn):
        assert list(inspect.signature(value_fn).parameters) == ["params"]
        value_fn(params)
        return updates, state

    with set_x64(True):
        guard(transformation(update)).update(PARAMS, (), PARAMS, value_fn=Model())
    assert seen == [True]


def test_a_narrow_extra_arg_alone_calls_for_a_rescue():
    def update(updates, state, params=None, *, value):
        step = lambda _, x: x + updates["w"][0]
        return {"w": updates["w"] * lax.fori_loop(0, 2, step, value)}, state

    with jax.numpy_dtype_promotion("standard"), pytest.warns(DtypeGuardWarning):
        updates, _ = guard(transformation(update)).update(PARAMS, (), PARAMS, value=BF16(0))
    assert updates["w"].tolist() == [2, 2, 2]


def test_updates_dtype_is_for_floats_alone():
    params = {"c": jnp.ones(2, jnp.complex64), "w": jnp.ones(2, BF16)}
    opt = guard(transformation(keep), policy=Policy(updates_dtype=F32))
    updates, _ = opt.update(params, (), params)
    assert [updates[name].dtype for name in "cw"] == [jnp.complex64, F32]
