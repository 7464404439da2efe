"""Leaves of a state that JAX does not take as they are, or not at all."""

import datetime
import enum
import io
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import tree_util
from one_leaf import transformation

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

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32
PARAMS = {"w": jnp.ones(3, BF16)}
POLICIES = [
    Policy(on_drift="error"),
    Policy(compute_dtype=F32, state_dtype=BF16),
    Policy(rounding="stochastic"),
]
needs_ref = pytest.mark.skipif(not hasattr(jax, "Ref"), reason="no references here")


class Level(enum.IntEnum):
    ONE = 1


class Rate(float):
    pass


ARRAYS = {  # as which JAX array a guard keeps them, with x64 off
    ">f4": (np.ones(3, ">f4"), "float32"),
    ">f8": (np.ones(3, ">f8"), "float32"),
    ">i4": (np.arange(3, dtype=">i4"), "int32"),
    ">c8": (np.full(2, 1 + 2j, ">c8"), "complex64"),
    "long double": (np.longdouble(1.5), "float32"),
    "int enum": (Level.ONE, "int32"),
    "subclass of float": (Rate(0.5), "float32"),
    "strided and frozen": (np.broadcast_to(np.float32(1), 3)[::-1], "float32"),
}
OTHERS = {
    "string": "cosine",
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


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("name", ARRAYS, ids=lambda name: name.replace(" ", "_"))
def test_a_number_of_any_make_becomes_an_array_of_its_dtype(name, policy):
    leaf, dtype = ARRAYS[name]
    opt = guard(counting(leaf), policy=policy)
    first = opt.init(PARAMS)
    # What a loader, or the bare optimizer, made:
    loaded = tree_util.tree_map(lambda x: x, first)
    inner(loaded)["leaf"] = leaf
    states = [first, strong(first), *(opt.update(PARAMS, s)[1] for s in (first, loaded))]
    for state in (*map(inner, states), restore(inner(loaded), inner(first))):
        made = state["leaf"]
        assert isinstance(made, jax.Array)
        assert (made.dtype, made.weak_type) == (dtype, False)
        np.testing.assert_array_equal(made, leaf)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_number_stays_the_same(name, policy):
    leaf = OTHERS[name]
    opt = guard(counting(leaf), policy=policy)
    state = opt.init(PARAMS)
    _, new_state = opt.update(PARAMS, state, PARAMS)
    step = guard_step(lambda carry: carry | {"count": carry["count"] + 1})
    trees = inner(state), inner(new_state), strong({"leaf": leaf}), step(inner(state))
    for tree in (*trees, restore(inner(state), record(counting(leaf), PARAMS))):
        assert tree["leaf"] is leaf
    assert audit(opt, PARAMS).ok


def test_what_is_no_array_passes_through():
    key = jax.random.key(0)
    others = {"key": key, "f": abs, "s": "text", "none": None, "masked": optax.MaskedNode()}
    opt = guard(transformation(init=lambda params: others))
    state = opt.init(PARAMS)
    _, new_state = opt.update(PARAMS, state)
    assert state["f"] is abs
    assert state["s"] == "text"
    assert tree_util.tree_structure(new_state) == tree_util.tree_structure(others)
    assert (
        jax.random.key_data(new_state["key"]).tolist() == jax.random.key_data(key).tolist()
    )


@needs_ref
@pytest.mark.parametrize(
    ("policy", "is_new"), [*zip(POLICIES, (True, False, True))], ids=str
)
def test_a_reference_stays_the_same_one(policy, is_new):
    """`init` makes a new one each time, or the optimizer holds it."""
    held = jax.new_ref(jnp.zeros((), BF16))

    def update(updates, state, params=None):
        state["ref"][...] += 1
        return updates, state | {"sum": state["sum"].astype(F32) + F32(1)}

    def init(params):
        ref = jax.new_ref(jnp.zeros((), BF16)) if is_new else held
        return {"ref": ref, "sum": jnp.zeros((), BF16), "n": 0}

    bare = transformation(update, init)
    opt = guard(bare, policy=Policy(**vars(policy) | {"on_drift": "cast"}))
    assert not audit(bare, PARAMS).ok
    assert audit(opt, PARAMS).ok
    state = opt.init(PARAMS)
    ref, before = inner(state)["ref"], inner(state)["ref"][...]
    updates = jax.jit(lambda params: opt.update(params, state, params)[0])(PARAMS)
    assert updates["w"].dtype == BF16
    _, new_state = opt.update(PARAMS, state, PARAMS)
    assert inner(new_state)["ref"] is ref
    assert ref[...] == before + 2
    assert inner(new_state)["n"].dtype == I32
    assert strong({"r": ref, "n": 0})["r"] is ref
    recorded = record(opt, PARAMS)
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
        opt.update(PARAMS, {"leaf": 0, "count": number})


@pytest.mark.parametrize("dtype", [BF16, jnp.float8_e4m3fn])
def test_bits_that_numpy_saved_without_their_dtype(dtype):
    """`np.save` knows none of JAX's own dtypes: they load as void."""
    file = io.BytesIO()
    np.save(file, np.ones(3, dtype))
    file.seek(0)
    loaded = np.load(file)
    assert loaded.dtype.kind == "V"
    wanted = {"x": jax.ShapeDtypeStruct((3,), dtype)}
    with pytest.raises(DtypeDriftError) as error:
        restore({"x": loaded}, wanted)
    remedy = re.search(r"load (x\.view\(.*?\)),", str(error.value))[1]
    viewed = restore({"x": eval(remedy, {"x": loaded, "jnp": jnp})}, wanted)["x"]
    assert viewed.dtype == dtype
    assert (viewed == 1).all()
