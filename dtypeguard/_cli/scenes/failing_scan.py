"""A scan that raises: an average whose decay is in another type."""

import jax
import jax.numpy as jnp

import dtypeguard

CALL = "dtypeguard.guard_step(step)"


def step(average, x):
    decay = jnp.asarray(0.9, jnp.float32)
    return decay * average + (1 - decay) * x, None


def run(has_call):
    body = dtypeguard.guard_step(step) if has_call else step
    jax.lax.scan(body, jnp.ones(3, jnp.bfloat16), jnp.ones((4, 3), jnp.bfloat16))
