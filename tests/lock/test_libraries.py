"""Locks of steps of Equinox, Flax NNX and Haiku, and of what JAX transforms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import Mesh, PartitionSpec

from dtypeguard.testing import check_lock
from tests.support.locked_step import BF16, F32
from tests.support.locks import lock_of, updated

pytestmark = pytest.mark.third_party
X = jax.ShapeDtypeStruct((4, 4), BF16)


def lines(step, *args, **options):
    """The lines of each function's table."""
    found = lock_of(step, args, {}, None, **options).lock
    table = {}
    for (_, name), entries in found.functions.items():
        kinds = table[name.rpartition(".")[2]] = {}
        for kind, texts in entries.items():
            kinds[kind] = sorted(texts.elements())
    return found, table


def test_equinox(tmp_path):
    opt = optax.adam(1e-3)

    def compute_loss(model, x):
        return jnp.mean(jax.vmap(model)(x).astype(F32) ** 2)

    @eqx.filter_jit
    def make_step(model, opt_state, x):
        loss, grads = eqx.filter_value_and_grad(compute_loss)(model, x)
        updates, opt_state = opt.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, loss

    def arguments(layers, dtype=BF16):
        model = eqx.nn.MLP(4, 4, 8, layers, dtype=dtype, key=jax.random.key(0))
        return model, opt.init(eqx.filter(model, eqx.is_inexact_array)), X

    lock, table = lines(make_step, *arguments(2))
    assert table["compute_loss"]["products"] == ["bfloat16 @ bfloat16 -> bfloat16"]
    assert table["compute_loss"]["casts"] == ["bfloat16 -> float32"]
    assert lock.types["inputs"]["opt_state[*].mu"] == "bfloat16"
    assert lock.types["inputs"]["model"] == lock.types["outputs"]["result[0]"] == "bfloat16"
    path = tmp_path / "mlp.lock"
    updated(make_step, *arguments(2), path=path)
    check_lock(make_step, *arguments(7), path=path)
    with pytest.raises(
        AssertionError, match=r"inputs +model +locked: bfloat16 +now: float32"
    ):
        check_lock(make_step, *arguments(2, F32), path=path)


class Net(nnx.Module):
    def __init__(self, dtype, rngs):
        self.linear = nnx.Linear(4, 4, dtype=dtype, rngs=rngs)

    def __call__(self, x):
        return nnx.relu(self.linear(x))


def test_a_layer_of_nnx_counts_for_the_line_that_calls_it(tmp_path):
    def loss_fn(model, x):
        return jnp.mean(model(x).astype(F32))

    @nnx.jit
    def train_step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(loss_fn)(model, x)
        optimizer.update(model, grads)
        return loss

    def arguments(dtype):
        model = Net(dtype, nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param), X

    lock, table = lines(train_step, *arguments(BF16))
    assert table["__call__"]["products"] == ["bfloat16 @ bfloat16 -> bfloat16"]
    assert lock.types["inputs"]["model"] == lock.types["outputs"]["model"] == "float32"
    path = tmp_path / "net.lock"
    updated(train_step, *arguments(BF16), path=path)
    check_lock(train_step, *arguments(BF16), path=path)
    with pytest.raises(AssertionError, match=r"__call__.*\n +return nnx.relu\(self.linear"):
        check_lock(train_step, *arguments(F32), path=path)


def test_optax_counts_by_what_it_takes_and_gives():
    opt = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

    def step(params, state):
        updates, state = opt.update(params, state, params)
        return optax.apply_updates(params, updates), state

    params = {"w": jnp.ones((3, 3), BF16), "b": jnp.ones(3, BF16)}
    _, table = lines(step, params, opt.init(params))
    assert {*table["step"]} == {"arithmetic"}


@jax.custom_vjp
def scaled(x):
    return x * 2


scaled.defvjp(lambda x: (x * 2, x), lambda x, g: ((g.astype(F32) * 2).astype(x.dtype),))


def double(x):
    out = jax.ShapeDtypeStruct(x.shape, F32)
    kernel = lambda x, out: out.__setitem__(..., x[...].astype(F32) * 2)
    return pl.pallas_call(kernel, out_shape=out, interpret=True)(x)


MESH = Mesh(np.array(jax.devices()[:1]), ("d",))


def total(x):
    split = PartitionSpec("d")
    add = lambda x: lax.psum(jnp.sum(x.astype(F32)), "d")
    if not hasattr(jax, "shard_map"):
        pytest.skip("before JAX 0.7")
    return jax.shard_map(add, mesh=MESH, in_specs=split, out_specs=PartitionSpec())(x)


def test_what_jax_transforms():
    @jax.checkpoint
    def layer(x, w):
        return jnp.tanh(scaled(x @ w)), None

    def loss(ws, x):
        return total(lax.scan(layer, x, ws)[0])

    def step(ws, x):
        value, grads = jax.value_and_grad(loss)(ws, x)
        halved = lax.cond(x[0, 0] > 0, lambda g: g / 2, lambda g: g, grads)
        return ws - lax.fori_loop(0, 3, lambda _, g: g * 2, halved), double(x), value

    lock, table = lines(step, jax.ShapeDtypeStruct((3, 4, 4), BF16), X)
    assert table["layer"]["products"] == ["bfloat16 @ bfloat16 -> bfloat16"]
    assert table["layer"]["backward_products"] == ["bfloat16 @ bfloat16 -> bfloat16"]
    assert table["total"]["sums"] == ["float32", "float32"]
    assert table["total"]["casts"] == ["bfloat16 -> float32"]
    assert table["double"]["arithmetic"] == ["bfloat16 -> float32"]
    # The rules of `scaled` count for the line that calls it.
    assert table["layer"]["arithmetic"] == ["bfloat16", "bfloat16"]
    assert lock.types["outputs"] == {
        "result[0]": "bfloat16",
        "result[1]": "float32",
        "result[2]": "float32",
    }


def test_numbers_in_keys_fold():
    def f(batch, params):
        return jax.tree.map(jnp.negative, params)

    batch = jnp.zeros(2, jnp.uint8), jnp.zeros(2, jnp.int32)
    params = {f"layer_{n}": {"w": jnp.ones(2, BF16), "b": jnp.ones(2)} for n in range(3)}
    lock, _ = lines(f, batch, params)
    assert lock.types["inputs"] == {
        "batch[*]": "int32, uint8",
        "params['layer_*']['b']": "float32",
        "params['layer_*']['w']": "bfloat16",
    }
