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


@pytest.mark.parametrize(
    "f", [unused, unused_in_a_call, unused_in_a_loop], ids=lambda f: f.__name__
)
def test_what_is_computed_and_not_used_takes_its_own_number(f):
    report = audit_precision(f, X)
    assert report.error == pytest.approx(1 / 0.9985 - 1, rel=1e-3)
    assert report.losses[0].constant == "0.9985 -> 1"


@pytest.mark.third_party
def test_numbers_that_a_sampler_is_given_are_no_losses():
    uniform = lambda key: jax.random.uniform(key, (64,), jnp.bfloat16, 0.1, 0.3)
    report = audit_precision(uniform, jax.random.key(0))
    assert (report.error, report.losses) == (0, ())


def test_a_loop_of_no_turn():
    def f(x):
        carry, rows = lax.scan(lambda h, row: (h * 0.99, jnp.sort(row)), x, X[:0, None])
        return carry * 1.3, rows

    report = audit_precision(f, X)
    (loss,) = [each for each in report.losses if each.alone]
    assert loss.origin.code == "return carry * 1.3, rows"
