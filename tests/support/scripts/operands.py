"""A step of a decoder whose new key does not fit its cache of keys."""

import jax
import jax.numpy as jnp
from jax import lax


@jax.jit
def write(cache, key):
    angle = jnp.arange(3, dtype=jnp.float32)  # operand: key
    new = key * jnp.cos(angle)  # promotion: key
    return lax.dynamic_update_slice(cache, new[None], (2, 0))


write(jnp.zeros((8, 3), jnp.bfloat16), jnp.ones(3, jnp.bfloat16))
# told: key: update  float32[1,3]
