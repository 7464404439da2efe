"""Python numbers that are rounded while JAX traces: which of a line is meant, and shown."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8"),
]
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
X = 2 + jnp.arange(16).reshape(4, 4).astype(BF16) / 16


def test_an_eps_beside_an_axis():
    """Both are 0 in float16, and only one of them was another number."""

    def f(g):
        return g / (jnp.sqrt(jnp.mean(g * g, 0)) + 1e-8)

    report = audit_precision(f, jnp.array([[0, 1], [0, 2]], F16))
    assert report.error == float("inf")
    assert report.fix[0].constant == "1e-08 -> 0"


def counted(x):
    step = lambda carry: (carry[0] + 1, carry[1] * 0.999)
    return lax.while_loop(lambda carry: carry[0] < 200, step, (0, x))[1]


ROUNDED = {  # a decay that is 1 in bfloat16, beside what is 1 as well
    "a count": counted,
    "an axis": lambda x: jnp.mean(x, 1) * 0.999,
    "an index": lambda x: x[1] * 0.999,
    "a keyword": lambda x: jax.nn.leaky_relu(-x, negative_slope=0.999),
    "made an array": lambda x: x * jnp.asarray(0.999, BF16),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_number_beside_others(name):
    f = ROUNDED[name]
    exact = f(np.asarray(X, np.float32) + jnp.zeros((), F32))
    if name == "made an array":
        exact = np.asarray(X, np.float32) * 0.999
    off = np.linalg.norm(np.asarray(f(X), np.float32) - exact) / np.linalg.norm(exact)
    report = audit_precision(f, X)
    assert report.error == pytest.approx(off, rel=0.01)
    assert report.losses[0].constant == "0.999 -> 1"


def test_a_number_that_makes_no_difference_is_not_shown():
    x = jnp.linspace(1, 2, 64).astype(BF16)
    scaled = lambda x: x * lax.rsqrt(jnp.mean(x * x) + 1e-6)
    (loss,) = audit_precision(scaled, x).losses
    assert loss.constant is None
