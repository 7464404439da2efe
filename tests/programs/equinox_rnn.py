"""An Equinox GRU that tells sequences apart, trained in one scan of a partitioned model."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

LENGTH, BATCH, STEPS, EPOCHS = 6, 8, 6, 3


class RNN(eqx.Module):
    hidden_size: int
    temperature: float
    cell: eqx.nn.GRUCell
    linear: eqx.nn.Linear
    wrap: Callable = eqx.field(static=True)

    def __init__(self, hidden_size, dtype, wrap, *, key):
        cell_key, linear_key = jax.random.split(key)
        self.hidden_size = hidden_size
        self.temperature = 0.5
        self.cell = eqx.nn.GRUCell(2, hidden_size, dtype=dtype, key=cell_key)
        self.linear = eqx.nn.Linear(hidden_size, 1, dtype=dtype, key=linear_key)
        self.wrap = wrap

    def __call__(self, xs):
        def unroll(hidden, x):
            return self.cell(x, hidden), None

        hidden = jnp.zeros(self.hidden_size, self.cell.weight_hh.dtype)
        hidden, _ = lax.scan(self.wrap(unroll), hidden, xs)
        return self.linear(hidden)[0] / self.temperature


def data():
    """Points that turn to the left or to the right, and which of it."""
    rng = np.random.default_rng(0)
    sign = rng.choice([-1, 1], (STEPS * BATCH, 1))
    angle = rng.uniform(0, 6, (STEPS * BATCH, 1)) + sign * 0.7 * np.arange(LENGTH)
    xs = np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)
    return xs.reshape(STEPS, BATCH, LENGTH, 2), (sign > 0).reshape(STEPS, BATCH)


def train(dtype, opt, step, mistake):
    """Trains for some epochs, each one scan over its batches."""
    model = RNN(4, dtype, step, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    adam = optax.adam(0.05)
    if mistake == "a float32 learning rate":
        adam = optax.adam(np.float32(0.05))  # the mistake
    optim = opt(optax.chain(optax.clip(1.0), adam))
    traces = []

    def loss_fn(params, xs, ys):
        model = eqx.combine(params, static)
        return optax.sigmoid_binary_cross_entropy(jax.vmap(model)(xs), ys).mean()

    def make_step(carry, batch):
        params, opt_state, smooth = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, *batch)
        updates, opt_state = optim.update(grads, opt_state, params)
        params = eqx.apply_updates(params, updates)
        if mistake == "a loss that is averaged in float32":
            smooth = 0.9 * smooth + 0.1 * loss.astype(jnp.float32)  # the mistake
        else:
            smooth = 0.9 * smooth + 0.1 * loss
        return (params, opt_state, smooth), loss

    @eqx.filter_jit
    @step
    def epoch(carry, xs, ys):
        traces.append(xs)
        return lax.scan(step(make_step), carry, (xs, ys))

    xs, ys = data()
    if mistake == "sequences left in float32":
        xs = jnp.asarray(xs)  # the mistake
    else:
        xs = jnp.asarray(xs, dtype)
    ys = jnp.asarray(ys, dtype)
    smooth = 0.0
    if mistake == "a loss that is averaged in float32":
        smooth = jnp.zeros((), dtype)
    first = carry = params, optim.init(params), smooth
    losses = []
    for _ in range(EPOCHS):
        carry, losses_of_epoch = epoch(carry, xs, ys)
        losses += np.asarray(losses_of_epoch, np.float32).tolist()
    return losses, first, carry, len(traces)
