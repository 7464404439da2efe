"""Mixed precision by hand, in plain JAX: float32 weights, a loss scale, an average."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

ROWS, FEATURES, STEPS, CHUNKS = 8, 4, 8, 3


class Scale(NamedTuple):
    value: jax.Array
    good_steps: jax.Array


class State(NamedTuple):
    params: Any
    opt_state: Any
    average: Any
    scale: Scale
    phase: jax.Array
    smooth_loss: jax.Array


def adjusted(scale, finite, mistake):
    """Grows after some finite steps, and halves after one that is not."""
    grows = finite & (scale.good_steps >= 4)
    value = jnp.where(grows, scale.value * 2, scale.value)
    value = jnp.where(finite, value, scale.value / 2)
    good_steps = jnp.where(finite & ~grows, scale.good_steps + 1, 0)
    if mistake == "a counter that is reset to a float":
        good_steps = jnp.where(finite & ~grows, scale.good_steps + 1, 0.0)  # the mistake
    if mistake == "a counter that is reset in 64 bits":
        none = jnp.zeros((), int)  # the mistake
        good_steps = jnp.where(finite & ~grows, scale.good_steps + 1, none)
    return Scale(jnp.maximum(value, 1.0), good_steps)


def train(dtype, opt, step, mistake):
    """Trains a perceptron: `dtype` is what it computes in."""
    traces = []
    optimizer = opt(optax.adamw(optax.cosine_decay_schedule(0.05, STEPS * CHUNKS)))

    def forward(params, x):
        params = jax.tree.map(lambda p: p.astype(dtype), params)
        hidden = jax.nn.silu(x @ params["w1"] + params["b1"])
        return (hidden @ params["w2"])[:, 0]

    def loss_fn(params, scale, x, y):
        loss = jnp.mean((forward(params, x) - y).astype(jnp.float32) ** 2)
        return loss * scale, loss

    def learned(state, x, y):
        grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
        (_, loss), grads = grad_fn(state.params, state.scale.value, x, y)
        grads = jax.tree.map(lambda g: g / state.scale.value, grads)
        finite = jnp.isfinite(optax.tree.norm(grads))

        def apply(state):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
            mixed = lambda a, p: (0.9 * a + 0.1 * p).astype(dtype)
            if mistake == "an average that is not cast":
                mixed = lambda a, p: 0.9 * a + 0.1 * p  # the mistake
            average = jax.tree.map(mixed, state.average, params)
            return state._replace(params=params, opt_state=opt_state, average=average)

        state = lax.cond(finite, step(apply), lambda state: state, state)
        return state._replace(scale=adjusted(state.scale, finite, mistake)), loss

    def noisier(x):
        return x + 0.01 * jnp.sign(x)

    def fainter(x):
        if mistake == "a branch in bfloat16":
            return (0.5 * x).astype(dtype)  # the mistake
        return 0.5 * x

    def train_step(state, batch):
        x, y = batch
        x = lax.switch(state.phase % 3, [lambda x: x, noisier, fainter], x)
        state, loss = learned(state, x.astype(dtype), y)
        smooth_loss = 0.9 * state.smooth_loss + 0.1 * loss
        return state._replace(phase=state.phase + 1, smooth_loss=smooth_loss), loss

    @jax.jit
    @step
    def chunk(state, batches):
        traces.append(batches)
        return lax.scan(step(train_step), state, batches)

    rng = np.random.default_rng(0)
    x = rng.normal(2.0, 3.0, (CHUNKS, STEPS, ROWS, FEATURES)).astype(np.float32)
    y = jnp.asarray(np.tanh(x[..., 0] - x[..., 1]), dtype)
    x = jnp.asarray(x)
    params = {
        "w1": jnp.asarray(rng.normal(size=(FEATURES, 8)) / 2, jnp.float32),
        "b1": jnp.zeros(8, jnp.float32),
        "w2": jnp.asarray(rng.normal(size=(8, 1)) / 3, jnp.float32),
    }
    state = first = State(
        params=params,
        opt_state=optimizer.init(params),
        average=jax.tree.map(lambda p: p.astype(dtype), params),
        scale=Scale(jnp.array(2.0**10, jnp.float32), jnp.array(0, jnp.int32)),
        phase=jnp.array(0, jnp.int32),
        smooth_loss=jnp.array(1.0, jnp.float32),
    )
    losses = []
    for n in range(CHUNKS):
        state, losses_of_chunk = chunk(state, (x[n], y[n]))
        losses += np.asarray(losses_of_chunk, np.float32).tolist()
    return losses, first, state, len(traces)
