"""One leaf in another dtype, one in another shape as well; as reported for JAX's scan."""

import jax
import jax.numpy as jnp


def step(x, _):
    first = x[0].astype("float32")  # promotion: first
    second = x[1].astype("float32").reshape(1, 1)  # promotion: second
    return (first, second), None


jax.lax.scan(step, (jnp.zeros((), int), jnp.zeros((), int)), None, length=1)
# told: first: x[0]  int32[] -> float32[]
# told: second: x[1]  int32[] -> float32[1,1]
