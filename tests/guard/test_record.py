"""record: the dtypes without running anything. restore: the way back, or why not."""

import collections
import dataclasses
import io
import re
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from jax import tree_util

from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard, record, restore
from tests.support.dtypes import BF16, F16, F32, I32
from tests.support.helpers import assert_same, need, set_x64, types
from tests.support.one_leaf import HUGE

PARAMS = {"w": jnp.ones((2, 3), BF16), "b": jnp.ones(3)}
ADAM = optax.adam(1e-3)

pytestmark = pytest.mark.third_party


def struct_types(tree):
    return tree_util.tree_map(lambda leaf: (str(leaf.dtype), False, leaf.shape), tree)


@pytest.mark.parametrize("x64", [False, True])
def test_record_is_what_guarded_init_gives_and_allocates_nothing(x64):
    opt = optax.MultiSteps(ADAM, 2)
    with set_x64(x64):
        for each in (opt, guard(opt)):
            assert struct_types(record(each, PARAMS)) == types(guard(opt).init(PARAMS))
    assert record(ADAM, {"w": HUGE})[0].mu["w"] == HUGE


# Leaves -----------------------------------------------------------------------------------


# This JAX may not have the narrowest dtypes.
E4M3, E5M2, FNUZ = jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e5m2fnuz
E8M0, E2M1 = (getattr(jnp, x, None) for x in ("float8_e8m0fnu", "float4_e2m1fn"))
of_known = lambda cases: [case for case in cases if case[1] is not None]
SURVIVES = [
    (np.float32(7.0), I32, 7),
    (True, F32, 1.0),
    (np.float64(np.inf), F16, np.inf),
    (np.float64(1e-9), F16, 0.0),
    (np.float32(1 / 3), BF16, ml_dtypes.bfloat16(1 / 3)),
    (jnp.asarray(3, jnp.int4), jnp.uint4, 3),
    (np.float32(440), E4M3, 448),
    (jnp.asarray(jnp.inf, BF16), E5M2, np.inf),
    (np.float32(np.nan), jnp.complex64, np.nan),
    (np.float32(5.9), E2M1, 6),
    (np.float32(2.0**-127), E8M0, 2.0**-127),
]
LOST = [
    (np.float32(2.5), I32, "2.5"),
    (np.float32(np.nan), I32, "nan"),
    (np.int64(2**40), I32, str(2**40)),
    (np.int8(-1), jnp.uint8, "-1"),  # which wraps there and back
    (jnp.asarray(15, jnp.uint4), jnp.int4, "15"),
    (2, jnp.bool_, "2"),
    (np.int32(257), BF16, "257"),
    (10**400, F32, "1000000"),  # which Python alone holds
    (np.float32(np.inf), E4M3, "inf"),  # which would become NaN
    (jnp.asarray(jnp.inf, E5M2), FNUZ, "inf"),
    (complex(1, np.nan), F32, "(1+nanj)"),
    (np.float32(460), E4M3, "460"),  # beyond the largest
    (np.float32(100), E2M1, "100"),  # it saturates
    (np.float32(np.nan), E2M1, "nan"),
    (np.float32(0), E8M0, "0.0"),  # it takes the powers of two alone
    (np.float32(3), E8M0, "3.0"),
]


@pytest.mark.parametrize(("leaf", "dtype", "value"), of_known(SURVIVES))
def test_restore_where_the_value_survives(leaf, dtype, value):
    (restored,) = restore((leaf,), (jax.ShapeDtypeStruct((), dtype),))
    assert isinstance(restored, jax.Array)
    assert (restored.dtype, restored.weak_type) == (dtype, False)
    np.testing.assert_equal(np.asarray(restored), np.asarray(value, dtype))


@pytest.mark.parametrize(("leaf", "dtype", "held"), of_known(LOST), ids=lambda _: "")
def test_restore_refuses_what_would_not_survive(leaf, dtype, held):
    wanted = {"x": jax.ShapeDtypeStruct(np.shape(leaf), dtype)}
    with pytest.raises(
        DtypeDriftError,
        match=rf"state\['x'\] .*{jnp.dtype(dtype)} cannot hold {re.escape(held)}",
    ):
        restore({"x": leaf}, wanted)
    with pytest.raises(DtypeDriftError, match=r"load it in shape \(2,\)"):
        restore({"x": leaf}, {"x": jax.ShapeDtypeStruct((2,), dtype)})


@pytest.mark.parametrize("number", [2**40, 3, np.float64(1e300), 1j, np.uint64(3)])
def test_restore_refuses_64_bits_where_jax_has_none(number):
    with set_x64(True):
        wanted = [jax.ShapeDtypeStruct((), jnp.asarray(number).dtype)]
        (wide,) = restore([number], wanted)
        assert (wide.dtype, wide) == (wanted[0].dtype, number)
    with pytest.raises(DtypeDriftError, match=r"JAX has no \w+ now: .*jax_enable_x64"):
        restore([number], wanted)
    assert restore([wide], wanted) == [wide]  # there is nothing to cast


@pytest.mark.parametrize("dtype", [BF16, F16, E4M3, E5M2])
def test_a_float64_number_is_rounded_once(dtype):
    """By way of float32, a number near a middle would go to the even neighbour."""
    spacing = float(jnp.finfo(dtype).eps)
    middle = 1 + spacing / 2
    numbers = np.array([middle - 2.0**-40, middle, middle + 2.0**-40, 1e-320])
    (restored,) = restore([-numbers], [jax.ShapeDtypeStruct((4,), dtype)])
    np.testing.assert_array_equal(
        np.asarray(restored, np.float64), [-1, -1, -1 - spacing, 0]
    )


@pytest.mark.parametrize("is_committed", [True, False])
def test_restore_keeps_a_jax_array_on_its_devices(is_committed):
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), "d")
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    held = jax.device_put(jnp.ones(4), sharding) if is_committed else jnp.ones(4)
    for dtype in (I32, BF16):
        (restored,) = restore([held], [jax.ShapeDtypeStruct((4,), dtype)])
        assert restored.dtype == dtype
        # JAX 0.4.25 does not tell.
        committed = getattr(restored, "committed", is_committed)
        assert (restored.sharding, committed) == (held.sharding, is_committed)


def test_restore_of_keys():
    key = jax.random.key(3)
    recorded = {"key": jax.eval_shape(lambda: key)}
    assert_same(restore({"key": key}, recorded), {"key": key})
    data = {"key": np.asarray(jax.random.key_data(key))}
    with pytest.raises(DtypeDriftError, match=re.escape("jax.random.wrap_key_data(x)")):
        restore(data, recorded)


def test_restore_while_traced():
    recorded = (jax.ShapeDtypeStruct((), I32), jax.ShapeDtypeStruct((), BF16))
    narrow = jax.jit(lambda *state: restore(state, recorded))
    assert types(narrow(jnp.asarray(1, jnp.int16), jnp.ones(()))) == struct_types(recorded)
    with pytest.raises(DtypeDriftError, match="not known here: convert it to int32 first"):
        narrow(jnp.ones(()), jnp.ones(()))


# Containers, as after loaders that know no NamedTuples ---------------------------------


def lists_of(tree, folder):
    """Through NumPy, which keeps neither keys nor names of a tuple."""
    file = io.BytesIO()
    np.save(file, {"state": as_lists(tree)}, allow_pickle=True)
    file.seek(0)
    return np.load(file, allow_pickle=True).item()["state"]


def as_lists(node):
    if isinstance(node, dict):
        return {key: as_lists(child) for key, child in node.items()}
    return [as_lists(child) for child in node] if isinstance(node, tuple) else node


def orbax_of(tree, folder):
    with need("orbax.checkpoint").StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "state", tree)
        checkpointer.wait_until_finished()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sharding info not provided")
            return checkpointer.restore(folder / "state")


def msgpack_of(tree, folder):
    serialization = need("flax.serialization")
    return serialization.msgpack_restore(
        serialization.msgpack_serialize(serialization.to_state_dict(tree))
    )


OPTIMIZERS = {
    "schedule": lambda: optax.chain(optax.clip(1.0), optax.adamw(lambda count: 0.1)),
    "two": lambda: optax.multi_transform(
        {"a": ADAM, "b": optax.sgd(0.1)}, {"w": "a", "b": "b"}
    ),
    "rounding": lambda: guard(ADAM, policy=Policy(rounding="stochastic")),
}


@pytest.mark.parametrize("load", [lists_of, orbax_of, msgpack_of])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_a_loader_makes_of_a_state(name, load, tmp_path):
    opt = guard(OPTIMIZERS[name]())
    leaves, treedef = tree_util.tree_flatten(opt.init(PARAMS))
    other = [x + jnp.asarray(i + 1, x.dtype) for i, x in enumerate(leaves)]
    state = treedef.unflatten(other)
    loaded = load(state, tmp_path)
    assert tree_util.tree_structure(loaded) != tree_util.tree_structure(state)
    with pytest.warns(DtypeGuardWarning, match="changed containers to those of") as told:
        restored = restore(loaded, record(opt, PARAMS))
    assert len(told) == 1
    assert_same(restored, state)
    assert_same(restore(restored, record(opt, PARAMS)), state)  # without a word


class Pair(NamedTuple):
    one: Any
    two: Any


class Swapped(NamedTuple):
    two: Any
    one: Any


@dataclasses.dataclass
class Other:
    a: Any
    b: Any
    c: int = 0


fields = lambda x: ([(tree_util.GetAttrKey(name), getattr(x, name)) for name in "ba"], x.c)
tree_util.register_pytree_with_keys(
    Other, fields, lambda c, children: Other(b=children[0], a=children[1], c=c)
)


def array(*shape, dtype=np.float32):
    return np.full(shape, len(shape), dtype)


def test_keys_come_before_positions():
    wanted = Pair(array(2), array(2))
    found = {"two": array(2) + 1, "one": array(2)}
    for loaded in (found, collections.OrderedDict(found), Swapped(**found)):
        with pytest.warns(DtypeGuardWarning, match="-> Pair  by key"):
            restored = restore({"x": loaded}, {"x": wanted})
        assert restored["x"].two[0] == restored["x"].one[0] + 1
    with pytest.warns(DtypeGuardWarning, match="state  dict -> tuple  by key"):
        restored = restore({1: array(2) + 1, 0: array(2)}, (array(2), array(2)))
    assert restored[1][0] == restored[0][0] + 1


def test_children_that_share_a_name_are_told_by_position():
    shared = collections.OrderedDict([(2, array()), ("2", array(1))])
    wanted = {"x": shared, "y": (array(2),)}
    with pytest.warns(DtypeGuardWarning, match="list -> tuple  by position"):
        restored = restore({"x": shared, "y": [array(2)]}, wanted)
    assert_same(restored, wanted)
    with pytest.raises(DtypeDriftError, match="leave it out"):
        restore(shared, {"0": array(), "2": array(1)})
    # None of the keys alone: the other child would be dropped.
    with pytest.raises(DtypeDriftError, match="leave it out"):
        restore(collections.OrderedDict([(2, array()), ("2", None)]), {"2": None})


# What is wanted and loaded, the line of the message, and what to load.
REFUSED = {
    "a list for a dict": (
        {"b": array(), "w": array()},
        [array(), array()],
        r"state +dict of b, w -> list of 2 +load a dict of b, w",
        {"b": array(), "w": array()},
    ),
    "a name missing": (
        Pair(array(), array()),
        {"one": array()},
        r"state\.two +float32\[\] -> \(absent\) +load what was recorded",
        {"one": array(), "two": array()},
    ),
    "too few": (
        {"x": (array(), array())},
        {"x": []},
        r"state\['x'\] +tuple of 2 -> list of 0 +load a list of 2",
        {"x": [array(), array()]},
    ),
    "another kind in a list for names": (
        Pair(array(dtype=np.int32), {"w": array()}),
        [array(), {"w": array()}],
        r"state\.one +int32\[\] -> float32\[\] +load what was recorded",
        [array(dtype=np.int64), {"w": array()}],
    ),
    # Registered in another order than defined: it fits in two orders.
    "a list for a dataclass of two orders": (
        Other(a=array(2), b=array(2)),
        [array(2), array(2) + 1],
        r"Other of b, a -> list of 2 +load a dict of b, a",
        {"b": array(2) + 1, "a": array(2)},
    ),
    "static fields": (
        Other(array(), array(1), c=1),
        Other(array(), array(1), c=2),
        r"state +Other of b, a -> Other of b, a +load a dict of b, a",
        {"a": array(), "b": array(1)},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:restore changed containers")
def test_the_first_place_that_differs(name):
    wanted, loaded, message, remedy = REFUSED[name]
    with pytest.raises(DtypeDriftError, match=message) as error:
        restore(loaded, wanted)
    assert str(error.value).startswith("The state has another tree than the record:")
    assert len(error.value.rows) == 1
    restored = restore(remedy, wanted)
    assert tree_util.tree_structure(restored) == tree_util.tree_structure(wanted)


def test_a_wrapper_that_is_added_to_a_running_job_or_left_out():
    policy = Policy(compute_dtype=F32, state_dtype="params", rounding="stochastic")
    for inner, outer, field in (
        (ADAM, optax.MultiSteps(ADAM, 2), "inner_opt_state"),
        # Three states in a tuple, and a RoundingState of three fields.
        (optax.adamw(1e-3), guard(optax.adamw(1e-3), policy=policy), "inner_state"),
        (
            optax.MultiSteps(ADAM, 2),
            guard(optax.MultiSteps(ADAM, 2), policy=policy),
            "inner_state",
        ),
    ):
        old, first = guard(inner).init(PARAMS), guard(outer).init(PARAMS)
        with pytest.raises(
            DtypeDriftError,
            match=rf"restore opt\.init\(params\)\._replace\({field}=state\)",
        ):
            restore(old, record(outer, PARAMS))
        state = restore(first._replace(**{field: old}), record(outer, PARAMS))
        with pytest.raises(DtypeDriftError, match=rf"restore state\.{field}\n"):
            restore(state, record(inner, PARAMS))
        assert_same(restore(getattr(state, field), record(inner, PARAMS)), old)
