"""guard_step over modules: what is data in them, and which type a weak leaf takes."""

from typing import Any, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_same, set_x64, types
from jax import lax, tree_util

from dtypeguard import audit, guard_step, strong
from dtypeguard.testing import check_step

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32


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


OPT = optax.adam(0.1)


def train(model, opt_state, x, key):
    loss_fn = lambda model: jnp.mean(jax.vmap(model)(x, key) ** 2)
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
    params = eqx.filter(model, eqx.is_inexact_array)
    updates, opt_state = OPT.update(grads, opt_state, params)
    return eqx.apply_updates(model, updates), opt_state, loss


def first(dtype=F32):
    linear = eqx.nn.Linear(4, 2, dtype=dtype, key=jax.random.key(0))
    model = Model([eqx.nn.Dropout(0.25), linear], dtype)
    return model, OPT.init(eqx.filter(model, eqx.is_inexact_array))


def batch():
    return jnp.ones((3, 4)), jax.random.split(jax.random.key(1), 3)


CARRY = ("model", "opt_state")
arrays = lambda tree: eqx.filter(tree, eqx.is_array)
WRAPPED = {
    "jit outside": lambda step: eqx.filter_jit(guard_step(step, carry=CARRY)),
    "jit inside": lambda step: guard_step(eqx.filter_jit(step), carry=CARRY),
    "eager": lambda step: guard_step(step, carry=CARRY),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_the_numbers_of_an_equinox_module_are_constants(name):
    traces = []

    def step(model, opt_state, *batch):
        traces.append(1)
        return train(model, opt_state, *batch)

    carry, expected = first(), first()
    guarded = WRAPPED[name](step)
    bare = eqx.filter_jit(train)
    for _ in range(3):
        *carry, loss = guarded(*carry, *batch())
        *expected, expected_loss = bare(*expected, *batch())
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    if name != "eager":
        assert len(traces) == 1
        assert_same((arrays(carry), loss), (arrays(expected), expected_loss))
    numbers = carry[0].numbers
    assert numbers == (2, {"out": 0.5}, False, 0.25)
    assert not any(isinstance(x, jax.Array) for x in tree_util.tree_leaves(numbers))


def test_a_module_in_strong_audit_and_check():
    model, opt_state = first(BF16)
    begun = strong(model)
    assert (begun.numbers, begun.dtype) == (model.numbers, BF16)
    assert type(begun.repeats) is int
    assert types(arrays(begun)) == types(arrays(model))
    args = (model, opt_state, *batch())
    report = audit(train, *args, carry=CARRY)
    assert report.ok, report
    check_step(train, *args, carry=CARRY)
    widened = lambda x: x * F32(1) if eqx.is_array(x) else x
    wide = lambda model, opt_state, *batch: train(
        tree_util.tree_map(widened, model), opt_state, *batch
    )
    drifts = audit(wide, *args, carry=CARRY).drifts
    assert "model.layers[1].weight" in {drift.path for drift in drifts}
    after, *_ = guard_step(wide, carry=CARRY)(*args)
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
        looped = lambda step: lax.fori_loop(
            0, 7, lambda i, c: step(c, rewards[i])[0], start
        )
        assert_same(looped(guard_step(logged)), looped(logged))
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
        going = lambda carry: carry[1] > 0.1
        return eqxi.while_loop(going, step, start, max_steps=8, kind=kind)

    with pytest.raises(Exception, match="bf16"):
        looped(body)
    x, change = looped(guard_step(body))
    assert (x.dtype, change.dtype) == (BF16, F32)
    if kind != "bounded":  # of which there is no scan
        step = guard_step(lambda carry, _: (body(carry), None))
        (x, change), _ = eqxi.scan(step, start, None, 3, kind=kind)
        assert (x.dtype, change.dtype) == (BF16, F32)
