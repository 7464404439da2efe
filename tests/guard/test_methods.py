"""A method carries the argument after `self`; where `self` comes back, it is named."""

import dataclasses
import functools
import inspect
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from helpers import need
from jax import lax, tree_util

from dtypeguard import guard_step

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
ZERO, X = jnp.zeros(3, BF16), jnp.ones(3, F32)


class Trainer:
    """Methods, with a jit above and below."""

    scale = 2.0

    @guard_step
    def step(self, state, x):
        return state + self.scale * x, None

    @functools.partial(jax.jit, static_argnums=0)
    @guard_step
    def jitted(self, state, x):
        return state + self.scale * x, None

    @guard_step(carry="state")
    @functools.partial(jax.jit, static_argnames="self")
    def jit_inside(self, x, state):
        return state + self.scale * x, None

    @guard_step
    @classmethod
    def class_above(cls, state, x):
        return state + cls.scale * x, None

    @classmethod
    @guard_step
    def class_below(cls, state, x):
        return state + cls.scale * x, None

    @guard_step
    @staticmethod
    def static(state, x):
        return state + 2 * x, None


@pytest.mark.parametrize("name", ["step", "jitted", "class_above", "class_below", "static"])
def test_method(name):
    method = getattr(Trainer(), name)
    new, _ = method(ZERO, X)
    assert (new.dtype, new[0]) == (BF16, 2)
    assert lax.scan(method, ZERO, jnp.stack([X, X]))[0].dtype == BF16


def test_bound_method_is_traced_once_and_has_its_signature():
    trainer = Trainer()
    assert trainer.step == trainer.step
    assert hash(trainer.step) == hash(trainer.step)
    assert str(inspect.signature(trainer.step)) == "(state, x)"
    for new, _ in (
        Trainer.step(trainer, ZERO, X),
        trainer.jit_inside(X, ZERO),
        Trainer.jit_inside(trainer, X, ZERO),
        guard_step(trainer.jit_inside, carry=1)(X, ZERO),
    ):
        assert new.dtype == BF16


def from_outside(self, state, x):
    return state + self.w * x, x


class Owner(eqx.Module):
    w: jax.Array
    outside = guard_step(from_outside)

    @guard_step
    def step(self, state, x):
        return state + self.w * x, x


@pytest.mark.parametrize("name", ["step", "outside"])
@pytest.mark.parametrize("wrap", [lambda f: f, eqx.filter_jit])
def test_method_of_a_module(wrap, name):
    module = Owner(X)
    step = getattr(module, name)
    state, _ = wrap(step)(ZERO, 1.0)
    assert state.dtype == BF16
    body = lambda state, x: step(state, x)  # lax.scan hashes what it is given
    assert lax.scan(body, state, jnp.ones(2, F32))[0].dtype == BF16
    # The module's arrays are arguments of a jit, and no constants in it.
    assert any(leaf is module.w for leaf in tree_util.tree_leaves(step))


def test_the_compact_method_of_a_linen_module_is_still_one():
    nn = need("flax.linen")

    class Cell(nn.Module):
        @guard_step(returned=0)
        @nn.compact
        def __call__(self, state, x):
            y = nn.Dense(3, name="gate")(x)
            return state + y, y

    class Scanned(nn.Module):
        @nn.compact
        def __call__(self, state, xs):
            scan = nn.scan(Cell, variable_broadcast="params", split_rngs={"params": False})
            return scan(name="cell")(state, xs)

    scanned, xs = Scanned(), jnp.ones((1, 2))
    params = scanned.init(jax.random.key(0), ZERO, xs)
    assert list(params["params"]["cell"]) == ["gate"]
    assert scanned.apply(params, ZERO, xs)[0].dtype == BF16


def test_a_method_keeps_what_other_decorators_left_on_it():
    def marked(method):
        method.mark = "left"
        return method

    class Marked:
        @guard_step(carry="state")
        @marked
        def step(self, state):
            """Its docstring."""
            return state * F32(2)

    assert inspect.isfunction(Marked.step)
    assert (Marked.step.mark, Marked.step.__doc__) == ("left", "Its docstring.")
    assert guard_step(Marked.step, carry="state") is Marked.step
    assert Marked().step(ZERO).dtype == BF16


# Where `self` comes back ------------------------------------------------------------------


class Steps:
    """Methods of any tree with one array `w`."""

    def update(self, x):
        return type(self)(self.w + x)

    def with_loss(self, x):
        return type(self)(self.w + x), x.sum()

    def loss_first(self, x):
        return x.sum(), type(self)(self.w + x)


@tree_util.register_dataclass
@dataclasses.dataclass
class Registered(Steps):
    w: Any


class Module(eqx.Module, Steps):
    w: Any


WAYS = {
    "jit above": lambda f, **options: jax.jit(guard_step(f, **options)),
    "jit below": lambda f, **options: guard_step(jax.jit(f), **options),
    "no jit": guard_step,
}
every_kind = pytest.mark.parametrize("kind", [Registered, Module])


def method(kind, name, way="no jit", **options):
    # A function for each: to JAX the trees of two dataclasses with the same fields are
    # equal, if their hashes happen to share a bucket of the cache of `jit`.
    step = getattr(kind, name)
    copied = type(step)(step.__code__, step.__globals__, name)
    return WAYS[way](copied, **options)


@every_kind
@pytest.mark.parametrize(
    ("name", "which"),
    [("update", ""), ("with_loss", ""), ("loss_first", ", returned=1")],
)
def test_self_that_comes_back_has_to_be_named(kind, name, which):
    with pytest.raises(TypeError) as error:
        method(kind, name)(kind(ZERO), X)
    assert f'guard_step(..., carry="self"{which}).' in str(error.value)


@every_kind
@pytest.mark.parametrize("way", WAYS)
def test_self_is_carried_where_it_is_named(kind, way):
    first = kind(ZERO)
    for name in ("update", "with_loss"):
        step = method(kind, name, way, carry="self")
        for _ in range(3):  # a step that is jitted inside repeats what it knows
            result = step(first, X)
            new, *others = result if name != "update" else (result,)
            assert (type(new), new.w.dtype, new.w.tolist()) == (kind, BF16, [1.0] * 3)
            assert [x.dtype for x in others] == [F32] * len(others)
