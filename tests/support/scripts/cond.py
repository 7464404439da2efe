"""Gradients that are clipped if they are large, in another type then."""

import jax
import jax.numpy as jnp


def clip(grads):
    squares = [jnp.sum(g.astype(jnp.float32) ** 2) for g in grads.values()]  # operand: clip
    norm = jnp.sqrt(sum(squares))
    return {name: g / norm for name, g in grads.items()}  # true_fun: clip


def keep(grads):
    return {name: 2 * g for name, g in grads.items()}  # false_fun: clip


@jax.jit
def limit(grads, is_large):
    return jax.lax.cond(is_large, clip, keep, grads)


limit({"w": jnp.ones(3, jnp.bfloat16)}, True)
# told: clip: true_fun gives float32[3]
# told: clip: false_fun gives bfloat16[3]
