"""A minimiser whose counter becomes a float, with x64 on; as reported for jax-md."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)


class State(NamedTuple):
    """A particle's, and for how many steps it has gone downhill."""

    position: Any
    velocity: Any
    downhill: Any


def step(state, _):
    power = jnp.vdot(state.position, state.velocity)
    more = state.downhill + jnp.float32(1)  # promotion: counter
    downhill = jnp.where(power >= 0, more, 0)
    return State(state.position + state.velocity, state.velocity, downhill), None


start = State(jnp.ones(2), jnp.ones(2), jnp.zeros((), jnp.int64))
jax.lax.scan(step, start, None, 4)
# told: counter: state.downhill  int64[] -> float32[]
