"""The Python numbers of a program, whatever else is computed on their lines."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")
X = jnp.linspace(0.5, 1, 64).astype(jnp.bfloat16)


def unused(x):
    _, b = x * 0.999, x * 0.9985  # both are 1 in bfloat16
    return b


def unused_in_a_call(x):
    return jax.jit(lambda x: (x * 0.999, x * 0.9985))(x)[1]


def unused_in_a_loop(x):
    step = lambda h, _: ((h[0] * 0.999, x * 0.9985), None)
    return lax.scan(step, (x, x), None, 1)[0][1]


def beside_a_loop_of_no_turn(x):
    carry, _ = lax.scan(lambda h, row: (h * 0.99, jnp.sort(row)), x, x[:0, None])
    return carry * 0.9985


PROGRAMS = unused, unused_in_a_call, unused_in_a_loop, beside_a_loop_of_no_turn


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_what_is_computed_and_not_used_takes_its_own_number(f):
    report = audit_precision(f, X)
    assert report.error == pytest.approx(1 / 0.9985 - 1, rel=1e-3)
    assert report.losses[0].constant == "0.9985 -> 1"
