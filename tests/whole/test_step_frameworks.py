"""guard_step over what frameworks carry: Flax's states and modules, Haiku's, Equinox's."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import need, types
from jax import lax, tree_util

from dtypeguard import guard_step, strong

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
WIDE = np.float32(1)


def widened(tree):
    return tree_util.tree_map(lambda x: x * WIDE if x.dtype == BF16 else x, tree)


def test_linen_train_state():
    linen, train_state = need("flax.linen"), need("flax.training.train_state")
    model = linen.Dense(2, param_dtype=BF16)
    params = model.init(jax.random.key(0), jnp.ones((1, 3)))["params"]
    state = train_state.TrainState.create(
        apply_fn=model.apply, params=params, tx=optax.adam(1e-2)
    )

    def step(state, x):
        loss = lambda p: jnp.mean(state.apply_fn({"params": p}, x).astype(F32) ** 2)
        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=widened(grads)), value

    xs = jnp.ones((3, 4, 3))
    with pytest.raises(TypeError, match="carry"):
        lax.scan(step, state, xs)
    first = strong(state)
    after, losses = lax.scan(guard_step(step), first, xs)
    assert types(after) == types(first)
    assert losses[-1] < losses[0]


def test_nnx_module_is_changed_in_place_as_before():
    nnx = need("flax.nnx")

    class Count(nnx.Variable):
        pass

    class Model(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(3, 2, param_dtype=BF16, rngs=nnx.Rngs(0))
            self.calls = Count(jnp.zeros((), jnp.int32))

    model = Model()

    @nnx.jit
    @guard_step(carry="state")
    def step(model, state, x):
        model.calls[...] = model.calls[...] + 1
        return {"m": state["m"] * 0.5 + x.astype(F32)}, model.linear(x)

    state = {"m": jnp.zeros(3, BF16)}
    for _ in range(2):
        state, _ = step(model, state, jnp.ones(3, BF16))
    assert state["m"].dtype == BF16
    assert model.calls[...] == 2


def test_nnx_module_as_a_carry_is_the_one_that_came_in():
    nnx = need("flax.nnx")
    model = nnx.Linear(3, 2, use_bias=False, param_dtype=BF16, rngs=nnx.Rngs(0))

    @guard_step
    def step(model, rate):
        model.kernel = nnx.Param(model.kernel[...] * rate)
        return model, rate

    after, _ = step(model, WIDE)
    assert after is model
    assert model.kernel[...].dtype == BF16


def test_nnx_state_as_a_carry():
    nnx = need("flax.nnx")
    graph, state = nnx.split(nnx.Linear(3, 2, param_dtype=BF16, rngs=nnx.Rngs(0)))

    def step(state, x):
        model = nnx.merge(graph, state)
        return tree_util.tree_map(lambda p: p * WIDE, state), model(x)

    first = strong(state)
    after, _ = lax.scan(guard_step(step), first, jnp.ones((2, 3), BF16))
    assert types(after) == types(first)


def test_haiku_params_and_state():
    hk = need("haiku")

    def forward(x):
        return hk.BatchNorm(True, True, 0.9)(hk.Linear(2)(x), is_training=True)

    model = hk.transform_with_state(forward)
    x = jnp.ones((4, 3))
    params, state = model.init(jax.random.key(0), x)
    narrow = lambda tree: tree_util.tree_map(lambda p: p.astype(BF16), tree)
    carry = strong((narrow(params), state))

    @guard_step(carry=("params", "state"))
    def step(params, state, x):
        out, state = model.apply(params, state, None, x)
        params = tree_util.tree_map(lambda p: p - 0.1 * jnp.mean(out), params)
        halve = lambda s: s.astype(BF16) if s.dtype == F32 else s
        return params, tree_util.tree_map(halve, state), out

    after = carry
    for _ in range(2):
        *after, out = jax.jit(step)(*after, x)
    assert types(tuple(after)) == types(carry)
    assert out.dtype == F32


def test_equinox_module_and_its_state():
    model, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="batch")

    @eqx.filter_jit
    @guard_step(carry=("model", "state"))
    def step(model, state, x):
        run = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        out, state = run(x, state)
        grow = lambda leaf: leaf * np.float32(2) if eqx.is_inexact_array(leaf) else leaf
        return tree_util.tree_map(grow, model), state, out

    narrow = lambda x: x.astype(BF16) if eqx.is_inexact_array(x) else x
    model = tree_util.tree_map(narrow, model)
    new, _, _ = step(model, state, jnp.ones((4, 3)))
    arrays = lambda tree: eqx.filter(tree, eqx.is_array)
    assert types(arrays(new)) == types(arrays(model))
    assert new.inference is False  # what the module branches on is no array
    again, _ = guard_step(lambda model: (model, None))(model)
    assert again.inference is False


def test_remat_custom_vjp_and_checkpointed_scan():
    body = guard_step(jax.checkpoint(lambda c, x: (c * x.astype(F32), x)))
    loss = lambda c, xs: lax.scan(body, c, xs)[0].astype(F32).sum()
    grads = jax.grad(loss)(jnp.ones(2, BF16), jnp.ones((3, 2)))
    assert grads.dtype == BF16
    np.testing.assert_array_equal(grads, jnp.ones(2, BF16))
