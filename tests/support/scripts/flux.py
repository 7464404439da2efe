"""Dynamics in float64 and physics in float32 meet in a cond; as reported for jax-gcm."""

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)


@jax.jit
def flux(is_land, dynamics, physics):
    over_land = lambda: 0.5 * dynamics  # true_fun: flux
    over_sea = lambda: jnp.zeros_like(physics)  # false_fun: flux
    return jax.lax.cond(is_land, over_land, over_sea)


flux(True, jnp.ones((1, 216)), jnp.ones((1, 216), jnp.float32))
# told: flux: true_fun gives float64[1,216]
# told: flux: false_fun gives float32[1,216]
