"""A Haiku LSTM that predicts a wave, unrolled by `hk.dynamic_unroll`."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

LENGTH, BATCH, STEPS, EPOCHS = 8, 4, 6, 3


def data(mistake):
    """Waves of some frequencies, time first."""
    rng = np.random.default_rng(0)
    phase = rng.uniform(0, 6, (STEPS, 1, BATCH, 1))
    speed = rng.uniform(0.3, 0.6, (STEPS, 1, BATCH, 1))
    if mistake == "waves in float64":
        return np.sin(phase + speed * np.arange(LENGTH + 1)[:, None, None])  # the mistake
    return np.sin(phase + speed * np.arange(LENGTH + 1)[:, None, None]).astype(np.float32)


def train(dtype, opt, step, mistake):
    """Trains for some epochs, each one scan over its batches."""
    traces = []

    def forward(xs):
        core = hk.LSTM(6)
        start_dtype = dtype if mistake == "waves in float64" else xs.dtype
        start = jax.tree.map(lambda x: x.astype(start_dtype), core.initial_state(BATCH))
        if mistake == "inputs that fade in float32":
            fading = jnp.linspace(1, 0, LENGTH)  # the mistake
            xs = xs * fading[:, None, None]
        outs, _ = hk.dynamic_unroll(step(core, carry=1, returned=1), xs, start)
        return hk.BatchApply(hk.Linear(1))(outs)

    network = hk.transform(forward)
    optimizer = opt(optax.adam(optax.exponential_decay(0.03, 5, 0.9)))

    def loss_fn(params, key, waves):
        predicted = network.apply(params, key, waves[:-1])
        return jnp.mean((predicted - waves[1:]) ** 2)

    def update(carry, waves):
        params, opt_state, key = carry
        key, step_key = jax.random.split(key)
        loss, grads = jax.value_and_grad(loss_fn)(params, step_key, waves)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        if mistake == "weights that shrink by a number from NumPy":
            shrink = np.exp(-0.01)  # the mistake
            params = jax.tree.map(lambda p: p * shrink, params)
        return (params, opt_state, key), loss

    @jax.jit
    @step
    def epoch(carry, waves):
        traces.append(waves)
        return lax.scan(step(update), carry, waves)

    if mistake == "waves in float64":
        waves = jnp.asarray(data(mistake))
    else:
        waves = jnp.asarray(data(mistake), dtype)
    key = jax.random.PRNGKey(0)
    params = jax.jit(network.init)(key, waves[0, :-1])
    first = carry = params, optimizer.init(params), key
    losses = []
    for _ in range(EPOCHS):
        carry, losses_of_epoch = epoch(carry, waves)
        losses += np.asarray(losses_of_epoch, np.float32).tolist()
    return losses, first, carry, len(traces)
