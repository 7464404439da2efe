"""A sum over sites that starts from a Python number; as reported for JAX's fori_loop."""

import jax.numpy as jnp
from jax import lax

spins = jnp.ones((10, 10))


def bond(i, pair):
    energy, spins = pair
    return energy - spins[i] * spins[i + 1], spins  # promotion: energy


lax.fori_loop(0, 9, bond, (0, spins))
# told: energy: pair[0]  float32[] -> float32[10]
