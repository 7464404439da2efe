"""A `cond` of Optax's own: gradients in another type than the state that holds them."""

import jax.numpy as jnp
import optax

opt = optax.apply_if_finite(optax.sgd(0.1, momentum=0.9), 3)
params = {"w": jnp.ones(3, jnp.bfloat16)}
opt.update({"w": jnp.ones(3, jnp.float32)}, opt.init(params), params)
