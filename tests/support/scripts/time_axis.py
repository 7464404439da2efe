"""A number that meets an array of one element, with x64 on; as reported for JAX's scan."""

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)


def move(x, t):
    x += 0.1 * t  # promotion: moved
    return x, t


jax.lax.scan(move, 0.0, jnp.linspace(0.0, 1.0, 10)[:, jnp.newaxis])
# told: moved: x  float64[] -> float64[1]
