"""What an update was given is kept, whatever the update does to its containers."""

import collections
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax, tree_util

from dtypeguard import (
    DtypeDriftError,
    DtypeGuardWarning,
    Policy,
    guard,
    guard_step,
    restore,
    strong,
)
from tests.support.dtypes import BF16, F32, I32
from tests.support.helpers import assert_same, types
from tests.support.one_leaf import either_policy, transformation

PARAMS = {"w": jnp.ones(3, BF16), "b": jnp.ones(2, BF16)}


@tree_util.register_pytree_node_class
class Node:
    """A node of attributes, which are set in place."""

    def __init__(self, m, n):
        self.m, self.n = m, n

    def tree_flatten(self):
        return (self.m, self.n), "static"

    @classmethod
    def tree_unflatten(cls, static, children):
        assert static == "static"
        return cls(*children)


# How a state of two leaves is made, and the dict in it that an update writes to.
CONTAINERS = {"dict": (dict, lambda state: state), "attributes": (Node, vars)}


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("jitted", [False, True])
def test_a_state_changed_in_place_keeps_its_types(name, jitted):
    make, opened = CONTAINERS[name]

    def update(updates, state, params=None):
        opened(state)["m"] = opened(state)["m"].astype(F32) * F32(0.5)
        return updates, state

    init = lambda params: make(m=jnp.zeros(3, BF16), n=jnp.zeros((), I32))
    opt = guard(transformation(update, init))
    state = opt.init(PARAMS)
    leaves = tree_util.tree_leaves(state)
    update = jax.jit(opt.update) if jitted else opt.update
    _, new_state = update(PARAMS, state, PARAMS)
    assert types(tree_util.tree_leaves(new_state)) == types(leaves)
    # The caller's own is as it was, leaf by leaf.
    assert all(a is b for a, b in zip(tree_util.tree_leaves(state), leaves))
    if jitted:
        update(PARAMS, new_state, PARAMS)
        assert update._cache_size() == 1


@pytest.mark.third_party
def test_the_second_attempt_is_given_what_came_in():
    def update(updates, state, params=None, *, batch):
        for tree in (state, updates, params, batch["in"]):
            tree["w"] = tree["w"][0]
            tree.pop("b")
        loop = lax.fori_loop(0, 2, lambda _, x: x * F32(0.5), updates["w"])
        new = {"w": jnp.full(3, loop), "b": jnp.zeros(2)}
        return new, new

    opt = guard(transformation(update, lambda params: params))
    updates, params, batch = dict(PARAMS), dict(PARAMS), {"in": dict(PARAMS)}
    state = opt.init(PARAMS)
    with pytest.warns(DtypeGuardWarning, match="was run in float32"):
        new_updates, new_state = opt.update(updates, state, params, batch=batch)
    assert types(new_updates) == types(new_state) == types(PARAMS)
    # The caller's containers are as they were.
    assert_same((updates, state, params, batch["in"]), (PARAMS,) * 4)


# The order of keys ------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:update failed and was run in float32")
@either_policy
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_an_update_sees_the_order_of_keys(policy, dtype):
    """In a second attempt and in another dtype as well."""

    def update(updates, state, params=None, *, batch):
        if params["w"].dtype != F32:
            raise TypeError("too narrow")
        return updates, [list(tree) for tree in (updates, params, params["in"], batch)]

    leaf = jnp.ones(2, dtype)
    params = {"w": leaf, "a": leaf, "in": {"z": leaf, "b": leaf, "a": leaf}}
    batch = collections.defaultdict(int, {"y": leaf, "x": leaf})
    given = [["w", "a", "in"], ["w", "a", "in"], ["z", "b", "a"], ["y", "x"]]
    opt = guard(transformation(update), policy=policy)
    assert opt.update(params, given, params, batch=batch)[1] == given


class Registered(dict):
    """A subclass of dict that keeps its order, as JAX is told."""


tree_util.register_pytree_with_keys(
    Registered,
    lambda d: ([(tree_util.DictKey(k), v) for k, v in d.items()], tuple(d)),
    lambda keys, values: Registered(zip(keys, values)),
)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        dict,
        lambda d: collections.defaultdict(list, d),
        collections.OrderedDict,
        Registered,
    ],
    ids=["dict", "defaultdict", "OrderedDict", "registered"],
)
def test_keys_keep_their_order_where_leaves_are_cast(make, jitted):
    """As they come back bare. `jit` itself sorts those of dict and defaultdict."""

    def carry(dtype):
        leaf = jnp.ones(1, dtype)
        return make({"z": leaf, "a": make({"y": leaf, "b": leaf})})

    def orders(tree):
        return [(type(node), [*node]) for node in (tree, tree["a"])]

    run = jax.jit if jitted else lambda f: f
    step = lambda carry_in: make({"state": carry(F32), "loss": F32(0)})
    result, bare = (run(f)(carry(BF16)) for f in (guard_step(step, returned="state"), step))
    assert [*result] == [*bare]
    trees = [result["state"]]
    bare = transformation(
        lambda u, s, p=None: (carry(F32), carry(F32)), lambda params: params
    )
    for policy in (None, Policy(compute_dtype=F32, state_dtype=BF16)):
        opt = guard(bare, policy=policy)
        state = run(opt.init)(carry(BF16))
        trees += [state, *run(opt.update)(carry(BF16), state, carry(BF16))]
    if not jitted:
        trees += strong(carry(BF16)), restore(carry(F32), state)
    expected = orders(run(lambda: carry(BF16))())
    assert [orders(tree) for tree in trees] == [expected] * len(trees)
    assert {tree["a"]["y"].dtype for tree in trees[:4]} == {jnp.dtype(BF16)}


# Shapes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [None, optax.MaskedNode()])
def test_a_leafs_own_gradient_is_found_where_others_are_missing(missing):
    """Per-example gradients of `w`, and none of `a`, which comes first."""
    four, five = jnp.ones((4, 3)), jnp.ones((5, 3))
    per_example = {"a": missing, "b": five, "w": four}
    params = {"a": four, "b": five, "w": jnp.ones(3)}
    for new in ({}, {"a": four}):
        opt = guard(transformation(lambda u, s, p=None, new=new: (u | new, s)))
        assert opt.update(per_example, (), params)[0]["w"].shape == (4, 3)
    grow = lambda u, s, p=None: ({"a": four, "b": u["b"], "w": u["b"]}, s)
    with pytest.raises(DtypeDriftError, match=re.escape("updates['w']")):
        guard(transformation(grow)).update(per_example, (), params)
