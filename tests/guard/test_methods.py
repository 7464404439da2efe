"""A method carries the argument after `self`; where `self` comes back, it is named."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import tree_util

from dtypeguard import audit, guard_step
from dtypeguard._leaves.arguments import copy_of
from dtypeguard.testing import check_step

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
X = jnp.ones(3, F32)


class Steps:
    """Methods of any tree with one array `w`."""

    def update(self, x):
        return self.made(self.w + x)

    def with_loss(self, x):
        return self.made(self.w + x), x.sum()

    def of_batch(self, batch):
        return self.made(self.w + batch["x"]), {"loss": batch["x"].sum()}

    def loss_first(self, x):
        return x.sum(), self.made(self.w + x)

    def by_name(self, x):
        return {"new": self.made(self.w + x), "loss": x.sum()}

    def of_scale(self, x):
        return self.made(self.w * x), x.sum()

    def with_state(self, state, x):
        return self.made(self.w + x), state + x

    def of_state(self, state, x):
        return state + self.w * x, x.sum()

    def of_another(self, other):
        return self.made(self.w.astype(F32) + other.w)

    def of_another_shape(self, x):
        return self.made(jnp.concatenate([self.w, x]))


@tree_util.register_dataclass
@dataclasses.dataclass
class Registered(Steps):
    w: Any

    def made(self, w):
        return Registered(w)


class _Named(NamedTuple):
    w: Any


class Named(_Named, Steps):
    def made(self, w):
        return Named(w)


class Module(eqx.Module, Steps):
    w: Any

    def made(self, w):
        return Module(w)


KINDS = [Registered, Named, Module]
WAYS = {
    "jit above": lambda f, **options: jax.jit(guard_step(f, **options)),
    "jit below": lambda f, **options: guard_step(jax.jit(f), **options),
    "no jit": guard_step,
}


def method(kind, name, way="no jit", **options):
    # A function for each: to JAX the trees of two dataclasses with the same fields are
    # equal, if their hashes happen to share a bucket of the cache of `jit`.
    return WAYS[way](copy_of(getattr(kind, name)), **options)


CASES = {"update": X, "with_loss": X, "of_batch": {"x": X}, "of_another_shape": X}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_self_that_comes_back_has_to_be_named(kind, name):
    message = (
        rf'{name} returned self and nothing like .*guard_step\(\.\.\., carry="self"\)\.'
    )
    with pytest.raises(TypeError, match=message):
        method(kind, name)(kind(jnp.zeros(3, BF16)), CASES[name])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_self_is_carried_where_it_is_named(kind, way):
    first = kind(jnp.zeros(3, BF16))
    for name in ("update", "with_loss", "of_batch"):
        step = method(kind, name, way, carry="self")
        for _ in range(3):  # a step that is jitted inside repeats what it knows
            result = step(first, CASES[name])
            new, *others = result if name != "update" else (result,)
            assert (type(new), new.w.dtype, new.w.tolist()) == (kind, BF16, [1.0] * 3)
            assert [x.dtype for x in tree_util.tree_leaves(others)] == [F32] * len(others)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bound_method_and_a_scan(kind):
    class Guarded(kind):
        step = jax.jit(guard_step(Steps.with_loss, carry="self"))

        def made(self, w):
            return Guarded(w)

    first, xs = Guarded(jnp.zeros(3, BF16)), jnp.ones((2, 3))
    if kind is not Registered:  # of which each class registers itself
        assert first.step(X)[0].w.dtype == BF16
    step = guard_step(kind.with_loss, carry="self")
    last, losses = jax.lax.scan(step, kind(jnp.zeros(3, BF16)), xs)
    assert (last.w.dtype, losses.dtype) == (BF16, F32)


@pytest.mark.parametrize("kind", KINDS)
def test_the_argument_after_self_is_carried_where_that_comes_back(kind):
    first = kind(jnp.ones(3, F32))
    state, _ = method(kind, "of_state")(first, jnp.zeros(3, BF16), X)
    assert state.dtype == BF16
    assert method(kind, "of_another")(kind(X), kind(jnp.zeros(3, BF16))).w.dtype == BF16


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "args", "remedy"),
    [
        ("loss_first", (X,), 'carry="self", returned=1)'),
        ("by_name", (X,), "carry=\"self\", returned='new')"),
        ("of_scale", (F32(2),), 'carry="self")'),
        ("with_state", (jnp.zeros(3, BF16), X), 'carry="self")'),
    ],
)
def test_where_it_is_not_sure_the_message_says_how_to_carry_self(kind, name, args, remedy):
    with pytest.raises(TypeError, match=r"x|state") as error:
        method(kind, name)(kind(jnp.zeros(3, BF16)), *args)
    assert f"guard_step(..., {remedy}." in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_says_how_to_carry_self(kind):
    first = kind(jnp.zeros(3, BF16))
    if kind is not Named:  # of a tuple, the first item is like `x`
        with pytest.raises(TypeError, match=r'audit\(\.\.\., carry="self"\)\.'):
            audit(kind.update, first, X)
    assert audit(guard_step(kind.update, carry="self"), first, X, carry="self").ok
    check_step(guard_step(kind.update, carry="self"), first, X, carry="self")


def test_an_object_that_is_no_tree_is_as_before():
    class Trainer(Steps):
        w = X

        def made(self, w):
            return self

    with pytest.raises(TypeError, match=r"x  float32\[3\] -> Trainer") as error:
        guard_step(Trainer.update)(Trainer(), X)
    assert 'carry="self"' not in str(error.value)
