"""Real runs: an Equinox MLP on scikit-learn's digits, trained in scans under x64."""

import contextlib

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from digits import parts
from helpers import needs_optax, set_x64
from jax import lax, tree_util

from dtypeguard import guard, multi_steps
from dtypeguard._leaves.compat import HAS_X64_SCOPE

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.filterwarnings("ignore:update failed and was run in float"),
]
BF16, F32 = jnp.bfloat16, jnp.float32


@pytest.fixture(scope="module")
def digits():
    return parts()


@pytest.fixture(autouse=True)
def x64():
    with set_x64(True):
        yield


def make_params(dtype):
    model = eqx.nn.MLP(64, 10, 64, 1, dtype=F32, key=jax.random.PRNGKey(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    return tree_util.tree_map(lambda leaf: leaf.astype(dtype), params), static


def loss_on(static, data):
    images, labels = (jnp.asarray(part) for part in data)

    def loss(params):
        model = eqx.combine(tree_util.tree_map(lambda p: p.astype(F32), params), static)
        scores = jax.nn.log_softmax(jax.vmap(model)(images))
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))

    return loss


def accuracy(params, static, data):
    images, labels = data
    model = eqx.combine(tree_util.tree_map(lambda p: p.astype(F32), params), static)
    return np.mean(np.argmax(jax.vmap(model)(images), axis=1) == labels)


def train_lbfgs(opt, digits):
    """Full batches; the loss itself goes to the line search."""
    params, static = make_params(F32)
    loss = loss_on(static, digits[0])

    def step(carry, _):
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = opt.update(
            grads, state, params, value=value, grad=grads, value_fn=loss
        )
        return (eqx.apply_updates(params, updates), state), value

    xs = jnp.zeros(40, F32)
    run = jax.jit(lambda p: eqxi.scan(step, (p, opt.init(p)), xs, kind="lax")[0][0])
    lowered = run.lower(params)
    return accuracy(run(params), static, digits[1]), "f64" in lowered.as_text()


def train_batches(opt, dtype, digits, steps=600, batch=100):
    """Batches of 100; gradients in float32 whatever the params are."""
    params, static = make_params(dtype)
    images, labels = (jnp.asarray(part) for part in digits[0])

    def step(carry, start):
        params, state = carry
        data = tuple(
            lax.dynamic_slice_in_dim(part, start, batch) for part in (images, labels)
        )
        wide = tree_util.tree_map(lambda p: p.astype(F32), params)
        grads = jax.grad(loss_on(static, data))(wide)
        updates, state = opt.update(grads, state, params)
        return (eqx.apply_updates(params, updates), state), None

    starts = jnp.arange(steps, dtype=jnp.int32) * batch % len(digits[0][1])
    run = jax.jit(lambda params: lax.scan(step, (params, opt.init(params)), starts))
    (params, _), _ = run(params)
    assert {leaf.dtype for leaf in tree_util.tree_leaves(params)} == {jnp.dtype(dtype)}
    return accuracy(params, static, digits[1])


@needs_optax("lbfgs")
def test_lbfgs_in_equinox_scan(digits):
    reached, computes_float64 = train_lbfgs(guard(optax.lbfgs()), digits)
    assert reached > 0.95
    assert not (computes_float64 and HAS_X64_SCOPE)
    with contextlib.suppress(TypeError):  # up to optax 0.2.4 it does not trace at all
        assert train_lbfgs(optax.lbfgs(), digits)[1]


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_chain_in_multi_steps(digits, dtype):
    chain = optax.chain(optax.zero_nans(), optax.clip(1.0), optax.adamw(3e-3))
    # In Optax 0.1.9 its own multiplies the bools of zero_nans into ints, guarded or not.
    multiplies_bools = optax.__version__ == "0.1.9"
    opt = (multi_steps if multiplies_bools else optax.MultiSteps)(chain, 2)
    if dtype == BF16 and not multiplies_bools:
        with pytest.raises(TypeError, match="types"):
            train_batches(opt, dtype, digits)
    assert train_batches(guard(opt), dtype, digits, steps=1200) > 0.95
