"""A running mean over a number of steps that is traced or not, as the argument says."""

import sys

import jax
import jax.numpy as jnp


def run(steps):
    def body(i, mean):
        weight = 1 / (i + 1).astype(jnp.float32)  # operand: mean
        return mean + weight * (mean - mean)  # promotion: mean

    return jax.lax.fori_loop(0, steps, body, jnp.ones(3, jnp.float16))


if sys.argv[1:] == ["traced"]:
    run = jax.jit(run)
run(3)
# told: mean: mean  float16[3] -> float32[3]
