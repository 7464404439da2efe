"""restore where only containers differ, as after loaders that know no NamedTuples."""

import collections
import dataclasses
import functools
import io
import warnings
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_same, need
from jax import tree_util

from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard, record, restore

pytestmark = pytest.mark.third_party
BF16 = jnp.bfloat16
PARAMS = {"w": jnp.ones((2, 3), BF16), "b": jnp.ones(3)}
OPTIMIZERS = {
    "schedule": lambda: optax.chain(optax.clip(1.0), optax.adamw(lambda count: 0.1)),
    "injected": lambda: optax.inject_hyperparams(optax.adam)(1e-3),
    "two": lambda: optax.multi_transform(
        {"a": optax.adam(1e-3), "b": optax.sgd(0.1)}, {"w": "a", "b": "b"}
    ),
    "rounding": lambda: guard(optax.adam(1e-3), policy=Policy(rounding="stochastic")),
}


# Loaders ----------------------------------------------------------------------------------


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
    checkpoint = need("orbax.checkpoint")
    with checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "state", tree)
    with checkpoint.StandardCheckpointer() as checkpointer, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sharding info not provided")
        return checkpointer.restore(folder / "state")


def msgpack_of(tree, folder):
    serialization = need("flax.serialization")
    state = serialization.to_state_dict(tree)
    return serialization.msgpack_restore(serialization.msgpack_serialize(state))


LOADERS = {
    "lists": lists_of,
    "orbax": orbax_of,
    "msgpack": msgpack_of,
}


def numbered(tree):
    """The tree with other values in every array."""
    leaves, treedef = tree_util.tree_flatten(tree)
    other = [x + jnp.asarray(i + 1, x.dtype) for i, x in enumerate(leaves)]
    return treedef.unflatten(other)


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_a_loader_makes_of_a_state(name, load, tmp_path):
    opt = guard(OPTIMIZERS[name]())
    state = numbered(opt.init(PARAMS))
    loaded = load(state, tmp_path)
    assert tree_util.tree_structure(loaded) != tree_util.tree_structure(state)
    with pytest.warns(DtypeGuardWarning, match="changed containers to those of") as told:
        restored = restore(loaded, record(opt, PARAMS))
    assert len(told) == 1
    assert_same(restored, state)
    assert_same(restore(restored, record(opt, PARAMS)), state)  # without a word


# Doubt ------------------------------------------------------------------------------------


class Pair(NamedTuple):
    one: Any
    two: Any


class Swapped(NamedTuple):
    two: Any
    one: Any


@functools.partial(tree_util.register_dataclass, data_fields=["b", "a"], meta_fields=["c"])
@dataclasses.dataclass
class Other:
    a: Any
    b: Any
    c: int = 0


def array(*shape, dtype=np.float32):
    return np.full(shape, len(shape), dtype)


def test_keys_come_before_positions():
    wanted = Pair(array(2), array(2))
    found = {"two": array(2) + 1, "one": array(2)}
    ordered = collections.OrderedDict(found)
    for loaded in (found, ordered, Swapped(**found), Pair(*wanted)._asdict() | found):
        with pytest.warns(DtypeGuardWarning, match="-> Pair  by key"):
            restored = restore({"x": loaded}, {"x": wanted})
        assert restored["x"].two[0] == restored["x"].one[0] + 1
    with pytest.warns(DtypeGuardWarning, match="state  dict -> tuple  by key"):
        restored = restore({1: array(2) + 1, 0: array(2)}, (array(2), array(2)))
    assert restored[1][0] == restored[0][0] + 1


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
        r"state\.two +float32\[\] -> \(absent\) +load it as well",
        {"one": array(), "two": array()},
    ),
    "too few": (
        {"x": (array(), array())},
        {"x": [array()]},
        r"state\['x'\] +tuple of 2 -> list of 1 +load one of 2",
        {"x": [array(), array()]},
    ),
    "another kind in a list for names": (
        Pair(array(dtype=np.int32), {"w": array()}),
        [array(), {"w": array()}],
        r"state\.one +int32\[\] -> float32\[\] +load what was recorded",
        [array(dtype=np.int64), {"w": array()}],
    ),
    "a stacked array": (
        Pair(array(2), array(2)),
        array(2, 2),
        r"Pair of one, two -> float32\[2,2\] +load a dict of one, two",
        {"one": array(2), "two": array(2)},
    ),
    "a container for an array": (
        [array(2)],
        ([1.0, 2.0],),
        r"state\[0\] +float32\[2\] -> list of 2 +load what was recorded",
        (array(2),),
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
        r"load it with the static fields of the record",
        {"a": array(), "b": array(1)},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_first_place_that_differs(name):
    wanted, loaded, message, remedy = REFUSED[name]
    with pytest.raises(DtypeDriftError, match=message) as error:
        restore(loaded, wanted)
    lines = str(error.value).splitlines()
    assert lines[0] == "The state has another tree than the record:"
    assert (len(lines), len(error.value.rows)) == (3, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DtypeGuardWarning)
        restored = restore(remedy, wanted)
    assert tree_util.tree_structure(restored) == tree_util.tree_structure(wanted)
