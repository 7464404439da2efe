"""A loss with a choice between two sides that are equal at first."""

import jax
import jax.numpy as jnp


def clipped(w, x, gains, before):
    """The loss of PPO, of whose two sides both are the least at first."""
    ratio = jnp.exp((jnp.tanh(x @ w[0]) @ w[1])[:, 0] - before)
    return -jnp.mean(jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains))


def inputs():
    """The arguments of the loss before the first step."""
    keys = jax.random.split(jax.random.key(0), 4)
    sizes = (16, 32), (32, 1), (64, 16), (64,)
    first, last, x, gains = map(jax.random.normal, keys, sizes)
    w = [first / 4, last / 6]
    return w, x, gains, (jnp.tanh(x @ w[0]) @ w[1])[:, 0]
