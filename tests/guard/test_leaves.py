"""Leaves of a state: the first ones, and what JAX does not take as it is, or not at all."""

import datetime
import enum
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import tree_util

from dtypeguard import (
    DtypeDriftError,
    Policy,
    audit,
    guard,
    guard_step,
    record,
    restore,
    strong,
)
from tests.support.dtypes import BF16, F32, I32
from tests.support.helpers import assert_same
from tests.support.one_leaf import NARROW, transformation

POLICIES = [
    Policy(on_drift="error"),
    Policy(compute_dtype=F32, state_dtype=BF16),
    Policy(rounding="stochastic"),
]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=str)


# The first state: in buffers of its own, copied leaf by leaf ------------------------------


def keep_params(params):
    """As Prodigy does: the first params, and one array in two places."""
    zeros = tree_util.tree_map(jnp.zeros_like, params)
    return {"params0": params, "mu": zeros, "nu": zeros}


@pytest.mark.parametrize("policy", [POLICIES[0], POLICIES[2]], ids=str)
@pytest.mark.parametrize("run", [lambda f: f, jax.jit, jax.vmap])
def test_params_and_first_state_can_be_donated(run, policy):
    opt = guard(transformation(init=keep_params), policy=policy)
    params = {"w": jnp.arange(3.0), "v": jnp.ones((3, 2))}
    state = run(opt.init)(params)
    assert_same(inner(state), keep_params(params))
    leaves = tree_util.tree_leaves((params, state))
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)


def make_rates():
    return jnp.linspace(0.1, 0.9, 9, dtype=F32)


@pytest.mark.parametrize("alias", [lambda x: x, jax.device_put, lambda x: x.reshape(3, 3)])
def test_an_array_that_the_optimizer_holds_outlasts_a_donated_state(alias):
    held = functools.cache(make_rates)
    opt = guard(transformation(init=lambda params: {"a": alias(held()), "b": held()}))
    step = jax.jit(lambda state: opt.update(NARROW, state)[1], donate_argnums=0)
    for _ in range(2):
        assert_same(step(opt.init(NARROW)), {"a": alias(make_rates()), "b": make_rates()})
    assert_same(held(), make_rates())


@pytest.mark.skipif(jax.__version_info__ < (0, 5), reason="needs JAX >= 0.5")
def test_a_copy_compiles_nothing(caplog):
    """A shape of its own for each leaf would compile a copy for each."""
    state = [jax.device_put(np.ones((17, n), np.float32)) for n in range(1, 9)]
    with jax.log_compiles(), caplog.at_level("WARNING"):
        copies = guard(transformation(init=lambda params: state)).init({})
    assert not [each for each in caplog.messages if "ompil" in each]
    assert len({each.unsafe_buffer_pointer() for each in (*state, *copies)}) == 16


# Numbers of any make ----------------------------------------------------------------------


class Level(enum.IntEnum):
    ONE = 1


class Rate(float):
    pass


NUMBERS = {  # as which JAX array a guard keeps them, with x64 off
    "int": (0, "int32"),
    "float": (1.5, "float32"),
    "bool": (np.True_, "bool"),
    "complex": (1j, "complex64"),
    "float16": (np.float16(1), "float16"),
    "float64": (np.ones(2), "float32"),
    "int enum": (Level.ONE, "int32"),
    "subclass of float": (Rate(0.5), "float32"),
    "strided and frozen": (np.broadcast_to(np.float32(1), 3)[::-1], "float32"),
}
OTHERS = {
    "string": "cosine",
    "function": abs,
    "strings": np.array(["a", "b"]),
    "objects": np.array([None, 1], object),
    "date": datetime.date(2000, 1, 1),
    "durations": np.array([1], "m8[s]"),
    "dtype": jnp.dtype(BF16),
}


def counting(leaf):
    """An optimizer whose state is a leaf that it keeps, and a count."""
    keep = lambda u, s, p=None: (u, s | {"count": s["count"] + 1})
    return transformation(keep, lambda params: {"leaf": leaf, "count": 0})


def inner(state):
    return getattr(state, "inner_state", state)


@every_policy
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_of_any_make_becomes_an_array_of_its_dtype(name, policy):
    leaf, dtype = NUMBERS[name]
    opt = guard(counting(leaf), policy=policy)
    first = opt.init(NARROW)
    # What a loader, or the bare optimizer, made:
    loaded = tree_util.tree_map(lambda x: x, first)
    inner(loaded)["leaf"] = leaf
    states = [first, strong(first), *(opt.update(NARROW, s)[1] for s in (first, loaded))]
    for state in (*map(inner, states), restore(inner(loaded), inner(first))):
        made = state["leaf"]
        assert isinstance(made, jax.Array)
        assert (made.dtype, made.weak_type) == (dtype, False)
        np.testing.assert_array_equal(made, leaf)


@every_policy
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_number_stays_the_same(name, policy):
    leaf = OTHERS[name]
    opt = guard(counting(leaf), policy=policy)
    state = opt.init(NARROW)
    _, new_state = opt.update(NARROW, state, NARROW)
    step = guard_step(lambda carry: carry | {"count": carry["count"] + 1})
    trees = inner(state), inner(new_state), strong({"leaf": leaf}), step(inner(state))
    for tree in (*trees, restore(inner(state), record(counting(leaf), NARROW))):
        assert tree["leaf"] is leaf
    assert audit(opt, NARROW).ok


def test_keys_and_empty_nodes_pass_through():
    first = {"key": jax.random.key(0), "none": None, "masked": optax.MaskedNode()}
    opt = guard(transformation(init=lambda params: first))
    assert_same(opt.update(NARROW, opt.init(NARROW))[1], first)


@pytest.mark.skipif(not hasattr(jax, "Ref"), reason="no references here")
@every_policy
def test_a_reference_stays_the_same_one(policy):
    """`init` makes a new one each time, or the optimizer holds it."""
    held = jax.new_ref(jnp.zeros((), BF16))
    is_new = policy is not POLICIES[1]

    def update(updates, state, params=None):
        state["ref"][...] += 1
        return updates, state | {"sum": state["sum"].astype(F32) + F32(1)}

    def init(params):
        ref = jax.new_ref(jnp.zeros((), BF16)) if is_new else held
        return {"ref": ref, "sum": jnp.zeros((), BF16), "n": 0}

    bare = transformation(update, init)
    opt = guard(bare, policy=Policy(**vars(policy) | {"on_drift": "cast"}))
    assert not audit(bare, NARROW).ok
    assert audit(opt, NARROW).ok
    state = opt.init(NARROW)
    ref, before = inner(state)["ref"], inner(state)["ref"][...]
    jax.jit(lambda params: opt.update(params, state, params)[0])(NARROW)
    _, new_state = opt.update(NARROW, state, NARROW)
    assert inner(new_state)["ref"] is ref
    assert ref[...] == before + 2
    assert inner(new_state)["n"].dtype == I32
    assert strong({"r": ref, "n": 0})["r"] is ref
    recorded = record(opt, NARROW)
    assert inner(recorded)["ref"] == jax.ShapeDtypeStruct((), BF16)
    assert inner(restore(new_state, recorded))["ref"] is ref
    wide = inner(recorded) | {"ref": jax.ShapeDtypeStruct((), F32)}
    with pytest.raises(DtypeDriftError, match=r"\['ref'\].*load float32\[\]"):
        restore(inner(new_state), wide)


@pytest.mark.parametrize("number", [2**31, np.int64(-(2**40)), 2**70])
def test_an_integer_that_does_not_fit_is_named(number):
    """A bare optimizer counts on in Python; in 32 bits the count would wrap."""
    opt = guard(counting(0))
    with pytest.raises(DtypeDriftError, match=r"state\['count'\] .* does not fit: turn on"):
        opt.update(NARROW, {"leaf": 0, "count": number})
