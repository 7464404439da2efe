"""A train step in a scan: the average of the weights and the counter drift."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import scan

DECAY = np.float32(0.99)  # operand: average


def average(old, new):
    return DECAY * old + 0.01 * new  # promotion: average


@jax.jit
def train(params, rate):
    def step(carry, x):
        params, seen, ema = carry
        params = {"w": params["w"] - rate * x}
        seen = seen + 0.5  # promotion: counter
        return (params, seen, {"w": average(ema["w"], params["w"])}), None

    init = params, jnp.zeros((), jnp.int32), params
    return scan(step, init, jnp.ones((4, 3), jnp.bfloat16))


train({"w": jnp.ones(3, jnp.bfloat16)}, jnp.bfloat16(0.1))
# told: average: carry[2]['w']  bfloat16[3] -> float32[3]
# told: counter: carry[1]  int32[] -> float32[]
