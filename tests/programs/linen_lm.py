"""A tiny transformer in Linen: remat, a TrainState, gradients of several batches."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state

VOCABULARY, LENGTH, WIDTH, BATCH, STEPS = 7, 6, 8, 4, 12


class Block(nn.Module):
    dtype: Any

    @nn.compact
    def __call__(self, x):
        kind = {"dtype": self.dtype, "param_dtype": self.dtype}
        scores = nn.Dense(LENGTH, **kind)(nn.LayerNorm(**kind)(x))
        is_before = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        return x + nn.softmax(jnp.where(is_before, scores, -1e9)) @ x


class Transformer(nn.Module):
    dtype: Any

    @nn.compact
    def __call__(self, tokens):
        kind = {"dtype": self.dtype, "param_dtype": self.dtype}
        x = nn.Embed(VOCABULARY, WIDTH, **kind)(tokens)
        return nn.Dense(VOCABULARY, **kind)(nn.remat(Block)(self.dtype)(x))


class TrainState(train_state.TrainState):
    seen: int
    smooth_loss: Any


def data():
    """Sequences that count up from somewhere."""
    rng = np.random.default_rng(0)
    starts = rng.integers(0, VOCABULARY, (STEPS, BATCH, 1))
    return (starts + np.arange(LENGTH + 1)) % VOCABULARY


def train(dtype, opt, step, mistake):
    """Trains in a Python loop, and emits an update for every second batch."""
    model = Transformer(dtype)
    traces = []

    @jax.jit
    @step
    def train_step(state, tokens):
        traces.append(tokens)

        def loss_fn(params):
            logits = state.apply_fn({"params": params}, tokens[:, :-1])
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits.astype(jnp.float32), tokens[:, 1:]
            )
            return losses.mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        state = state.apply_gradients(grads=grads)
        if mistake == "weights that shrink by a float32 number":
            shrink = np.float32(0.999)  # the mistake
            params = jax.tree.map(lambda p: p * shrink, state.params)
            state = state.replace(params=params)
        seen = state.seen + tokens.size
        if mistake == "a count of tokens that becomes a float":
            seen = state.seen + tokens.size / BATCH  # the mistake
        return state.replace(
            seen=seen,
            smooth_loss=0.9 * state.smooth_loss + 0.1 * loss,
        ), loss

    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.05, 2, STEPS)
    adamw = optax.adamw(
        schedule, mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params)
    )
    optimizer = opt(optax.MultiSteps(adamw, every_k_schedule=2))

    @jax.jit
    def create(key):
        seen, smooth_loss = 0, jnp.zeros(())
        if mistake == "a loss that begins as an int":
            smooth_loss = jnp.int32(0)  # the mistake
        if mistake == "a count of tokens that becomes a float":
            seen = jnp.zeros((), int)
        variables = model.init(key, jnp.zeros((1, LENGTH), jnp.int32))
        return TrainState.create(
            apply_fn=model.apply,
            params=variables["params"],
            tx=optimizer,
            seen=seen,
            smooth_loss=smooth_loss,
        )

    batches = jnp.asarray(data(), jnp.int32)
    state = first = create(jax.random.key(0))
    losses = []
    for tokens in batches:
        state, loss = train_step(state, tokens)
        losses.append(loss.item())
    return losses, first, state, len(traces)
