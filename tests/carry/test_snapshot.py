"""What an update was given is kept, whatever the update does to its containers."""

import collections
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from helpers import assert_same, needs_x64_scope, set_x64, types
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

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32
PARAMS = {"w": jnp.ones(3, BF16), "b": jnp.ones(2, BF16)}


@tree_util.register_pytree_node_class
class Node:
    """A node of attributes, which are set in place."""

    def __init__(self, m, n):
        self.m, self.n = m, n

    def __eq__(self, other):
        return vars(self) == vars(other)

    __hash__ = object.__hash__

    def tree_flatten(self):
        return (self.m, self.n), "static"

    @classmethod
    def tree_unflatten(cls, static, children):
        assert static == "static"
        return cls(*children)


class Frozen(eqx.Module):
    inside: dict
    static: str = eqx.field(static=True)


ACCESS = {
    "dict": (lambda s: s["m"], lambda s, m: s.__setitem__("m", m)),
    "attribute": (lambda s: s.m, lambda s, m: setattr(s, "m", m)),
    "list": (lambda s: s[0], lambda s, m: s.__setitem__(0, m)),
    "nested": (lambda s: s[0][0]["m"], lambda s, m: s[0][0].__setitem__("m", m)),
    "module": (lambda s: s.inside["m"], lambda s, m: s.inside.__setitem__("m", m)),
}
CONTAINERS = {
    "dict": (lambda m, n: {"m": m, "n": n}, *ACCESS["dict"]),
    "ordered dict": (
        lambda m, n: collections.OrderedDict([("n", n), ("m", m)]),
        *ACCESS["dict"],
    ),
    "attributes": (Node, *ACCESS["attribute"]),
    "dict in a module": (
        lambda m, n: Frozen({"m": m, "n": n}, "static"),
        *ACCESS["module"],
    ),
}


def in_place(make, read, write):
    """An optimizer that changes the containers of its state and returns them."""

    def update(updates, state, params=None):
        write(state, read(state).astype(F32) * F32(0.5))
        return updates, state

    init = lambda params: make(jnp.zeros(3, BF16), jnp.zeros((), I32))
    return optax.GradientTransformation(init, update)


@pytest.mark.parametrize("name", CONTAINERS, ids=lambda name: name.replace(" ", "_"))
@pytest.mark.parametrize("jitted", [False, True])
def test_a_state_changed_in_place_keeps_its_types(name, jitted):
    opt = guard(in_place(*CONTAINERS[name]))
    state = opt.init(PARAMS)
    before = types(state), tree_util.tree_leaves(state)
    update = jax.jit(opt.update) if jitted else opt.update
    _, new_state = update(PARAMS, state, PARAMS)
    assert types(new_state) == types(state) == before[0]
    # The caller's own is as it was, leaf by leaf.
    assert all(a is b for a, b in zip(tree_util.tree_leaves(state), before[1]))
    update(PARAMS, new_state, PARAMS)
    if jitted:
        assert update._cache_size() == 1


def test_updates_params_and_extra_args_changed_in_place():
    def update(updates, state, params=None, *, batch):
        for tree in (updates, params):
            for name in tree:
                tree[name] = tree[name].astype(F32)
        del params["b"]
        batch["x"].append(batch["x"][0])
        return updates, state

    opt = guard(optax.GradientTransformationExtraArgs(lambda params: (), update))
    params, grads, batch = dict(PARAMS), dict(PARAMS), {"x": [jnp.ones(2)]}
    for _ in range(2):
        updates, _ = opt.update(grads, opt.init(params), params, batch=batch)
        assert types(updates) == types(PARAMS)
    for tree in (params, grads):
        assert_same(tree, PARAMS)
    assert len(batch["x"]) == 1


def rescued_after_a_change(updates, state, params=None, *, batch):
    """Changes its containers before it fails."""
    for tree in (state, updates, params, batch):
        tree["w"] = tree["w"][0]
        tree.pop("b")
    loop = lax.fori_loop(0, 2, lambda _, x: x * F32(0.5), updates["w"])
    new = {"w": jnp.full(3, loop), "b": jnp.zeros(2)}
    return new, new


@pytest.mark.third_party
def test_the_second_attempt_is_given_what_came_in():
    opt = guard(
        optax.GradientTransformationExtraArgs(lambda params: params, rescued_after_a_change)
    )
    state, batch = opt.init(PARAMS), dict(PARAMS)
    with jax.numpy_dtype_promotion("standard"), pytest.warns(DtypeGuardWarning):
        updates, new_state = opt.update(PARAMS, state, PARAMS, batch=batch)
    assert types(updates) == types(PARAMS)
    assert types(new_state) == types(PARAMS)
    assert_same((state, batch), (PARAMS, PARAMS))


@needs_x64_scope
def test_the_attempt_with_x64_is_given_what_came_in():
    def update(updates, state, params=None):
        return updates, {"m": state.pop("m") + jnp.asarray(2**40).astype(I32)}

    make = lambda params: {"m": jnp.zeros(3, I32)}
    opt = guard(optax.GradientTransformation(make, update))
    with set_x64(True), pytest.warns(DtypeGuardWarning, match="runs with x64 on"):
        _, state = opt.update(PARAMS, opt.init(PARAMS), PARAMS)
    assert_same(state, {"m": jnp.zeros(3, I32)})


def test_dicts_keep_the_order_of_their_keys():
    seen = []

    def update(updates, state, params=None, *, batch):
        seen.append([list(tree) for tree in (updates, params, params["in"], batch)])
        return updates, state

    opt = guard(optax.GradientTransformationExtraArgs(lambda params: (), update))
    params = {"w": F32(1), "a": F32(1), "in": {"z": F32(1), "b": F32(2), "a": F32(3)}}
    batch = collections.defaultdict(int, {"y": F32(1), "x": F32(2)})
    opt.update(params, (), params, batch=batch)
    assert seen == [[["w", "a", "in"], ["w", "a", "in"], ["z", "b", "a"], ["y", "x"]]]


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
        leaf = jnp.ones((), dtype)
        return make({"z": leaf, "a": make({"y": leaf, "b": leaf})})

    def orders(tree):
        return [(type(node), [*node]) for node in (tree, tree["a"])]

    def step(carry_in, x):
        return make({"state": carry(F32), "loss": x})

    run = jax.jit if jitted else lambda f: f
    result = run(guard_step(step, returned="state"))(carry(BF16), F32(0))
    bare = run(step)(carry(BF16), F32(0))
    assert [*result] == [*bare]
    assert orders(result["state"]) == orders(bare["state"])
    assert result["state"]["a"]["y"].dtype == BF16
    update = lambda updates, state, params=None: (carry(F32), carry(F32))
    bare = optax.GradientTransformation(lambda params: carry(BF16), update)
    for policy in (None, Policy(compute_dtype=F32, state_dtype=BF16)):
        opt = guard(bare, policy=policy)
        state = run(opt.init)(carry(BF16))
        updates, new_state = run(opt.update)(carry(BF16), state, carry(BF16))
        trees = updates, state, new_state
        if not jitted:
            trees += strong(carry(F32)), restore(carry(F32), new_state)
        expected = orders(run(bare.update)(carry(BF16), state, carry(BF16))[1])
        assert [orders(tree) for tree in trees] == [expected] * len(trees)
        assert updates["a"]["y"].dtype == new_state["a"]["y"].dtype == BF16


# Shapes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [None, optax.MaskedNode()])
def test_a_leafs_own_gradient_is_found_where_others_are_missing(missing):
    """Per-example gradients of `w`, and none of `a`, which comes first."""
    per_example = {"a": missing, "b": jnp.ones((5, 3)), "w": jnp.ones((4, 3))}
    params = {"a": jnp.ones((4, 3)), "b": jnp.ones((5, 3)), "w": jnp.ones(3)}
    keep = lambda updates, state, params=None: (updates, state)
    grow = lambda u, s, p=None: ({"a": jnp.ones((4, 3)), "b": u["b"], "w": u["b"]}, s)
    for update in (keep, lambda u, s, p=None: (dict(u, a=jnp.ones((4, 3))), s)):
        opt = guard(optax.GradientTransformation(lambda params: (), update))
        assert opt.update(per_example, (), params)[0]["w"].shape == (4, 3)
    opt = guard(optax.GradientTransformation(lambda params: (), grow))
    with pytest.raises(DtypeDriftError, match=re.escape("updates['w']")):
        opt.update(per_example, (), params)
