"""Stochastic variational inference with NumPyro, by Optax, a `fori_loop` in a `scan`."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import lax
from numpyro.infer import SVI, Trace_ELBO

ROWS, STEPS, CHUNKS = 16, 4, 3


def data():
    """A line with noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 2)).astype(np.float32)
    return x, x @ np.float32([1.5, -0.5]) + 0.1 * rng.normal(size=ROWS).astype(np.float32)


def train(dtype, opt, step, mistake):
    """Fits a Bayesian regression in chunks, and keeps the best loss."""
    traces = []

    def model(x, y):
        prior = dist.Normal(jnp.zeros(2, dtype), jnp.ones(2, dtype)).to_event(1)
        weights = numpyro.sample("weights", prior)
        with numpyro.plate("rows", ROWS):
            numpyro.sample("y", dist.Normal(x @ weights, 0.5), obs=y)

    def guide(x, y):
        positive = dist.constraints.positive
        loc = numpyro.param("loc", jnp.zeros(2, dtype))
        scale = numpyro.param("scale", jnp.full(2, 0.1, dtype), constraint=positive)
        numpyro.sample("weights", dist.Normal(loc, scale).to_event(1))

    clip = optax.clip(10.0)
    if mistake == "a float32 bound on gradients":
        clip = optax.clip(np.float32(10.0))  # the mistake
    optimizer = opt(optax.chain(clip, optax.adam(0.1)))
    svi = SVI(model, guide, optimizer, Trace_ELBO())

    @jax.jit
    @step
    def chunk(carry, x, y):
        traces.append(x)

        def update(n, state):
            return svi.update(state, x, y)[0]

        def update_some(carry, _):
            state, best = carry
            state = lax.fori_loop(0, 3, step(update, carry="state"), state)
            loss = svi.evaluate(state, x, y)
            return (state, jnp.minimum(best, loss)), loss

        return lax.scan(step(update_some), carry, None, STEPS)

    x, y = jax.tree.map(lambda a: jnp.asarray(a, dtype), data())
    state = jax.jit(svi.init)(jax.random.key(0), x, y)
    best = jnp.array(jnp.inf, jnp.float32)
    if mistake == "a best loss that begins as an int":
        best = jnp.int32(10**6)  # the mistake
    if mistake == "a best loss that begins in bfloat16":
        best = jnp.array(jnp.inf, dtype)  # the mistake
    first = carry = state, best
    losses = []
    for _ in range(CHUNKS):
        carry, losses_of_chunk = chunk(carry, x, y)
        losses += np.asarray(losses_of_chunk, np.float32).tolist()
    return losses, first, carry, len(traces)
