"""A method carries the argument after `self`; where `self` comes back, it is named."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import tree_util

from dtypeguard import guard_step
from dtypeguard._leaves.arguments import copy_of

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
X = jnp.ones(3, F32)


class Steps:
    """Methods of any tree with one array `w`."""

    def update(self, x):
        return type(self)(self.w + x)

    def with_loss(self, x):
        return type(self)(self.w + x), x.sum()

    def loss_first(self, x):
        return x.sum(), type(self)(self.w + x)

    def of_state(self, state, x):
        return state + self.w * x, x.sum()


@tree_util.register_dataclass
@dataclasses.dataclass
class Registered(Steps):
    w: Any


class Module(eqx.Module, Steps):
    w: Any


KINDS = [Registered, Module]
WAYS = {
    "jit above": lambda f, **options: jax.jit(guard_step(f, **options)),
    "jit below": lambda f, **options: guard_step(jax.jit(f), **options),
    "no jit": guard_step,
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def method(kind, name, way="no jit", **options):
    # A function for each: to JAX the trees of two dataclasses with the same fields are
    # equal, if their hashes happen to share a bucket of the cache of `jit`.
    return WAYS[way](copy_of(getattr(kind, name)), **options)


@every_kind
@pytest.mark.parametrize("name", ["update", "with_loss"])
def test_self_that_comes_back_has_to_be_named(kind, name):
    message = r'To name another: guard_step\(\.\.\., carry="self"\)\.'
    with pytest.raises(TypeError, match=message):
        method(kind, name)(kind(jnp.zeros(3, BF16)), X)


@every_kind
@pytest.mark.parametrize("way", WAYS)
def test_self_is_carried_where_it_is_named(kind, way):
    first = kind(jnp.zeros(3, BF16))
    for name in ("update", "with_loss"):
        step = method(kind, name, way, carry="self")
        for _ in range(3):  # a step that is jitted inside repeats what it knows
            result = step(first, X)
            new, *others = result if name != "update" else (result,)
            assert (type(new), new.w.dtype, new.w.tolist()) == (kind, BF16, [1.0] * 3)
            assert [x.dtype for x in tree_util.tree_leaves(others)] == [F32] * len(others)


@every_kind
def test_the_argument_after_self_is_carried_where_that_comes_back(kind):
    state, _ = method(kind, "of_state")(kind(jnp.ones(3, F32)), jnp.zeros(3, BF16), X)
    assert state.dtype == BF16


@every_kind
def test_where_it_is_not_sure_the_message_says_how_to_carry_self(kind):
    with pytest.raises(TypeError, match=r"x|state") as error:
        method(kind, "loss_first")(kind(jnp.zeros(3, BF16)), X)
    assert 'guard_step(..., carry="self", returned=1).' in str(error.value)
