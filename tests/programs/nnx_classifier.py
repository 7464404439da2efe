"""A Flax NNX classifier with metrics, in a Python loop and in a scan."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

BATCH, STEPS = 16, 8


class Model(nnx.Module):
    def __init__(self, dtype, rngs, mistake):
        self.mistake = mistake
        self.linear = nnx.Linear(4, 8, dtype=dtype, param_dtype=dtype, rngs=rngs)
        self.spread = nnx.BatchStat(jnp.ones(4, dtype))
        self.norm = nnx.BatchNorm(8, dtype=dtype, param_dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(8, 3, dtype=dtype, param_dtype=dtype, rngs=rngs)

    def __call__(self, x):
        spread = 0.9 * self.spread.get_value() + 0.1 * x.std(0)
        if self.mistake in (
            "a running spread in float32 in a loop",
            "a running spread in float32 in a scan",
        ):
            wide = x.astype(jnp.float32)  # the mistake
            spread = 0.9 * self.spread.get_value() + 0.1 * wide.std(0)
        self.spread.set_value(spread)
        x = nnx.relu(self.dropout(self.norm(self.linear(x))))
        return self.out(x)


def loss_fn(model, x, y):
    logits = model(x)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
    return loss, logits


def data():
    """Points around three corners, and around which."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, (STEPS, BATCH))
    x = np.eye(4)[y] + 0.3 * rng.normal(size=(STEPS, BATCH, 4))
    return x.astype(np.float32), y.astype(np.int32)


def train(dtype, opt, step, mistake):
    """Trains in a Python loop, and goes on in `nnx.scan`."""
    model = Model(dtype, nnx.Rngs(0), mistake)
    optimizer = nnx.Optimizer(model, opt(optax.adam(1e-2)), wrt=nnx.Param)
    metrics = nnx.MultiMetric(
        accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss")
    )
    traces = []

    def learn(model, optimizer, metrics, x, y):
        (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, x, y)
        if mistake == "gradients times a float32 number in a scan":
            halved = lambda g: g * np.float32(0.5)  # the mistake
            grads = jax.tree.map(halved, grads)
        metrics.update(loss=loss, logits=logits, labels=y)
        optimizer.update(model, grads)
        return loss

    @nnx.jit
    @step
    def train_step(model, optimizer, metrics, x, y):
        traces.append("step")
        return learn(model, optimizer, metrics, x, y)

    @nnx.jit
    @step
    def train_epoch(model, optimizer, metrics, xs, ys):
        traces.append("epoch")

        @nnx.scan(in_axes=(nnx.Carry, 0, 0), out_axes=(nnx.Carry, 0))
        @step
        def scanned(carry, x, y):
            return carry, learn(*carry, x, y)

        _, losses = scanned((model, optimizer, metrics), xs, ys)
        return losses

    held = model, optimizer, metrics
    first = jax.tree.map(jnp.copy, nnx.state(held))
    xs, ys = data()
    xs = jnp.asarray(xs, dtype)
    losses = []
    for x, y in [] if mistake.endswith("in a scan") else zip(xs, ys):
        losses.append(train_step(*held, x, y).item())
    for _ in range(0 if mistake.endswith("in a loop") else 2):
        losses += np.asarray(train_epoch(*held, xs, ys), np.float32).tolist()
    return losses, first, nnx.state(held), len(traces)
