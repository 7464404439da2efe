"""A step that compiles again: its first state is made of Python numbers."""

import jax
import jax.numpy as jnp

import dtypeguard

CALL = "dtypeguard.strong(state)"


def run(state):
    traced = []

    def step(state, x):
        traced.append(state)  # as often as it is compiled
        return {"mean": 0.9 * state["mean"] + 0.1 * x, "count": state["count"] + 1}

    jitted = jax.jit(step)
    x = jnp.ones(3)
    new_state = state
    for _ in range(3):
        new_state = jitted(new_state, x)
    count = "once" if len(traced) == 1 else f"{len(traced)} times"
    return f"compiled {count} in 3 calls", dtypeguard.audit(step, state, x)


def bare():
    state = {"mean": jnp.full(3, 0.0), "count": 0}
    return run(state)


def guarded():
    state = {"mean": jnp.full(3, 0.0), "count": 0}
    text, report = run(dtypeguard.strong(state))
    assert report.compilations == 1, report
    return text, report
