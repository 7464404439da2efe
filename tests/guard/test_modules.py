"""guard_step on methods and over modules: what is carried, and what is data in them."""

import dataclasses
import functools
import inspect
from typing import Any, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, tree_util

from dtypeguard import audit, guard_step, strong
from dtypeguard.testing import check_step
from tests.support.dtypes import BF16, F32
from tests.support.helpers import assert_same, need, set_x64, types

pytestmark = pytest.mark.third_party
ZERO, X = jnp.zeros(3, BF16), jnp.ones(3, F32)


def moved(state, x):
    return state + 2 * x, None


class Trainer:
    """Methods, with a jit above and below."""

    @guard_step
    def step(self, state, x):
        return moved(state, x)

    @functools.partial(jax.jit, static_argnums=0)
    @guard_step
    def jitted(self, state, x):
        return moved(state, x)

    @guard_step(carry="state")
    @functools.partial(jax.jit, static_argnames="self")
    def jit_inside(self, x, state):
        return moved(state, x)

    @guard_step
    @classmethod
    def class_above(cls, state, x):
        return moved(state, x)

    static = guard_step(staticmethod(moved))


@pytest.mark.parametrize("name", ["step", "jitted", "class_above", "static"])
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


@dataclasses.dataclass
class Registered(Steps):
    w: Any


tree_util.register_pytree_node(
    Registered, lambda x: ((x.w,), None), lambda _, children: Registered(*children)
)


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
    return WAYS[way](type(step)(step.__code__, step.__globals__, name), **options)


@every_kind
@pytest.mark.parametrize("name", ["update", "with_loss", "loss_first"])
def test_self_that_comes_back_has_to_be_named(kind, name):
    remedy = r'To name another: guard_step\(\.\.\., carry=NAME\), or carry="self"'
    with pytest.raises(TypeError, match=remedy):
        method(kind, name)(kind(ZERO), X)
    with pytest.raises(TypeError, match=remedy):
        guard_step(getattr(kind(ZERO), name))(X)


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


# What is data in a module, and which type a weak leaf takes -----------------------------


class Model(eqx.Module):
    """Fields of every kind that Equinox's own layers have."""

    layers: list
    dtype: Any
    repeats: int = 2
    scale: dict = eqx.field(default_factory=lambda: {"out": 0.5})
    verbose: bool = False

    def __call__(self, x, key):
        dropout, linear = self.layers
        x = x.astype(self.dtype)
        for _ in range(self.repeats):
            x = jax.nn.relu(x)
        x = linear(dropout(x, key=key))
        return x if self.verbose else x * self.scale["out"]

    @property
    def numbers(self):
        return self.repeats, self.scale, self.verbose, self.layers[0].p


def train(model, x, key):
    loss, grads = eqx.filter_value_and_grad(
        lambda model: jnp.mean(jax.vmap(model)(x, key) ** 2)
    )(model)
    return eqx.apply_updates(model, tree_util.tree_map(lambda g: -0.1 * g, grads)), loss


def first(dtype=F32):
    linear = eqx.nn.Linear(4, 2, dtype=dtype, key=jax.random.key(0))
    return Model([eqx.nn.Dropout(0.25), linear], dtype)


def batch():
    return jnp.ones((3, 4)), jax.random.split(jax.random.key(1), 3)


arrays = lambda tree: eqx.filter(tree, eqx.is_array)
WRAPPED = {
    "jit outside": lambda step: eqx.filter_jit(guard_step(step)),
    "jit inside": lambda step: guard_step(eqx.filter_jit(step)),
    "eager": guard_step,
}


@pytest.mark.parametrize("name", WRAPPED)
def test_the_numbers_of_an_equinox_module_are_constants(name):
    traces = []

    def step(model, *batch):
        traces.append(1)
        return train(model, *batch)

    model, expected = first(), first()
    guarded, bare = WRAPPED[name](step), eqx.filter_jit(train)
    for _ in range(3):
        model, loss = guarded(model, *batch())
        expected, expected_loss = bare(expected, *batch())
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    if name != "eager":
        assert len(traces) == 1
        assert_same((arrays(model), loss), (arrays(expected), expected_loss))
    assert model.numbers == (2, {"out": 0.5}, False, 0.25)
    ends = guard_step(lambda model: eqx.tree_at(lambda m: m.scale["out"], model, 1))
    numbers = [*tree_util.tree_leaves(model.numbers), ends(model).scale["out"]]
    assert not any(isinstance(x, jax.Array) for x in numbers)


def test_a_module_in_strong_audit_and_check():
    model = first(BF16)
    begun = strong(model)
    assert (begun.numbers, begun.dtype) == (model.numbers, BF16)
    assert type(begun.repeats) is int
    assert types(arrays(begun)) == types(arrays(model))
    report = audit(train, model, *batch())
    assert report.ok, report
    check_step(train, model, *batch())
    widened = lambda x: x * F32(1) if eqx.is_array(x) else x
    wide = lambda model, *batch: train(tree_util.tree_map(widened, model), *batch)
    drifts = audit(wide, model, *batch()).drifts
    assert "model.layers[1].weight" in {drift.path for drift in drifts}
    after, _ = guard_step(wide)(model, *batch())
    assert types(arrays(after)) == types(arrays(model))


def test_a_dtype_is_no_array():
    step = lambda state, dtype: (state | {"x": (state["x"] * F32(2)).astype(dtype)}, dtype)
    state = {"x": jnp.ones(2, BF16), "dtype": BF16, "other": np.dtype("float32")}
    after, dtype = guard_step(step)(state, F32)
    assert (after["x"].dtype, after["dtype"], dtype) == (BF16, BF16, F32)
    assert strong(state)["dtype"] is BF16
    # So does one among the other arguments.
    (drift,) = audit(step, state, F32).drifts
    assert drift.path == "state['x']"
    check_step(guard_step(step), state, F32)
    check_step(step, state, BF16)


class Env(NamedTuple):
    returns: Any
    length: Any


def logged(env, reward):
    """As of a log wrapper: it begins with Python numbers."""
    left = 1 - (env.length > 2)
    returns = env.returns + reward
    return Env(returns * left, (env.length + 1) * left), returns


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("x64", [False, True])
def test_a_first_carry_of_python_numbers_is_for_the_loop_to_type(dtype, x64):
    with set_x64(x64):
        start, rewards = Env(0, 0), jnp.ones(7, dtype)
        bare = lax.scan(logged, start, rewards)
        assert bare[0].returns.dtype == dtype
        assert_same(lax.scan(guard_step(logged), start, rewards), bare)
        # The step that has the loop in it is compiled as often as bare.
        counts = []
        for wrap in (lambda step: step, guard_step):
            traces = []

            def outer(env, traces=traces):
                traces.append(1)
                return lax.scan(logged, env, rewards)[0]

            step, env = jax.jit(wrap(outer)), start
            for _ in range(3):
                env = step(env)
            counts.append(len(traces))
            assert env.returns.dtype == dtype
        assert counts[0] == counts[1]


def test_a_number_that_stays_weak_promotes_as_it_does_bare():
    """Made a float32 array for a jitted step, 1.1 would widen what is in bfloat16."""
    step = lambda carry: (carry[0] * carry[1], carry[1] * 1.1)
    start = jnp.ones(3, BF16), 1.1
    for wrap in (lambda s: guard_step(jax.jit(s)), lambda s: jax.jit(guard_step(s))):
        bare, guarded, run, run_bare = start, start, wrap(step), jax.jit(step)
        for _ in range(3):
            bare, guarded = run_bare(bare), run(guarded)
            assert_same(guarded, bare)


@pytest.mark.parametrize("kind", ["lax", "checkpointed", "bounded"])
def test_a_loop_of_equinox_types_its_weak_leaves_once(kind):
    """It does not trace its body again, as JAX does: there a weak leaf is pinned."""
    start = jnp.ones(3, BF16), jnp.array(jnp.inf)

    def body(carry):
        x, _ = carry
        new = jnp.cos(x)
        return new, jnp.max(jnp.abs(new - x))

    def looped(step):
        return eqxi.while_loop(
            lambda carry: carry[1] > 0.1, step, start, max_steps=8, kind=kind
        )

    with pytest.raises(Exception, match="bf16"):
        looped(body)
    x, change = looped(guard_step(body))
    assert (x.dtype, change.dtype) == (BF16, F32)
    if kind != "bounded":  # of which there is no scan
        step = guard_step(lambda carry, _: (body(carry), None))
        (x, change), _ = eqxi.scan(step, start, None, 3, kind=kind)
        assert (x.dtype, change.dtype) == (BF16, F32)
