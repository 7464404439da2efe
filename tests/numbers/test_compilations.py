"""How often equations are compiled, however many runs are made."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from plans_run import Planned

from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")


@contextlib.contextmanager
def compilations():
    """A list that gets an entry for each program that XLA compiles."""
    found = []

    def hear(event, *_, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        yield found
    finally:
        jax.monitoring.clear_event_listeners()


def summed(x, places):
    made = jax.ops.segment_sum(x * 1.1, places, 5)
    return jax.ops.segment_max(made[places] * 1.3, places, 5)


def test_what_holds_a_program_is_compiled_once_for_each_of_its_dtypes():
    x, places = jnp.linspace(0, 1, 35).reshape(7, 5).astype(jnp.bfloat16), jnp.arange(7) % 5
    planned = Planned(summed, x, places)
    for _ in range(2):
        planned.wide()
        planned.rounding()
    with compilations() as found:
        planned.wide()
        planned.rounding()
    assert not found
