"""A step that compiles again: its first state is made of Python numbers."""

import jax
import jax.numpy as jnp

import dtypeguard

CALL = "dtypeguard.strong(state)"


def run(has_call):
    first_state = {"mean": jnp.full(3, 0.0), "count": 0}
    if has_call:
        first_state = dtypeguard.strong(first_state)
    traced = []

    def step(state, x):
        traced.append(state)  # as often as it is compiled
        return {"mean": 0.9 * state["mean"] + 0.1 * x, "count": state["count"] + 1}

    jitted = jax.jit(step)
    x = jnp.ones(3)
    state = first_state
    for _ in range(3):
        state = jitted(state, x)
    compilations = len(traced)  # an audit traces as well
    assert compilations == 1 or not has_call
    report = dtypeguard.audit(step, first_state, x)
    return f"compilations in 3 calls: {compilations}.\n{report}"
