"""Optax's wrappers in one scan: skips what is not finite, lowers the rate on a plateau."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

ROWS, STEPS, CHUNKS = 16, 10, 3


def data():
    """A curve with noise; one batch has a value that is not finite."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (STEPS, ROWS, 1))
    y = np.sin(3 * x) + 0.05 * rng.normal(size=x.shape)
    y[4, 0] = np.inf
    return x.astype(np.float32), y.astype(np.float32)


def predict(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def loss_fn(params, x, y):
    return jnp.mean((predict(params, x) - y) ** 2)


def train(dtype=jnp.float32, opt=lambda opt: opt, step=lambda step, **options: step):
    """Trains for some epochs, each one scan over its batches.

    Returns:
        The losses, the first carry and the last, and how often an epoch was traced.
    """
    schedule = optax.join_schedules(
        [optax.linear_schedule(0.0, 0.05, 5), optax.cosine_decay_schedule(0.05, 40)], [5]
    )
    optimizer = opt(
        optax.chain(
            optax.apply_if_finite(
                optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule)), 3
            ),
            optax.contrib.reduce_on_plateau(patience=4, accumulation_size=2),
        )
    )
    traces = []

    def update(carry, batch):
        params, opt_state, best = carry
        value, grads = jax.value_and_grad(loss_fn)(params, *batch)
        finite = jnp.isfinite(value)
        updates, opt_state = optimizer.update(
            grads, opt_state, params, value=jnp.where(finite, value, best)
        )
        params = optax.apply_updates(params, updates)
        best = jnp.where(finite & (value < best), value, best)
        return (params, opt_state, best), value

    @jax.jit
    @step
    def epoch(carry, xs, ys):
        traces.append(xs)
        return lax.scan(step(update), carry, (xs, ys))

    key = jax.random.key(0)
    params = {
        "w1": jax.random.normal(key, (1, 8), dtype),
        "b1": jnp.zeros(8, dtype),
        "w2": jax.random.normal(key, (8, 1), dtype) / 3,
        "b2": jnp.zeros(1, dtype),
    }
    xs, ys = jax.tree.map(lambda a: jnp.asarray(a, dtype), data())
    first = carry = params, optimizer.init(params), jnp.asarray(10.0, dtype)
    losses = []
    for _ in range(CHUNKS):
        carry, losses_of_epoch = epoch(carry, xs, ys)
        losses += np.asarray(losses_of_epoch, np.float32).tolist()
    return losses, first, carry, len(traces)
