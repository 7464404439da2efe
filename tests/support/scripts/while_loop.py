"""A search that scales its step by a float32 constant, under grad."""

import jax
import jax.numpy as jnp


def search(point):
    shrink = jnp.asarray(0.5, jnp.float32)  # operand: shrink

    def body(state):
        step = state["step"] * shrink  # promotion: shrink
        return {"step": step, "point": state["point"]}

    start = {"step": jnp.ones((), jnp.bfloat16), "point": point}
    return jax.lax.while_loop(lambda state: state["step"] > 0.1, body, start)


jax.jvp(search, (jnp.ones(3),), (jnp.ones(3),))
# told: shrink: state['step']  bfloat16[] -> float32[]
