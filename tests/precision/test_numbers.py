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
    "a choice": lambda x: jnp.where(x > 1, x, 1) * 0.999,
    "an array": lambda x: jnp.where(x > 1, 0.999, x),
    "a keyword": lambda x: jax.nn.leaky_relu(-x, negative_slope=0.999),
    "a call": lambda x: jnp.full_like(x, 0.999) * x,
    "an update": lambda x: x.at[:].apply(lambda y: y * 0.999),
    "made an array": lambda x: x * jnp.asarray(0.999, BF16),
}


def scaled(x, by):
    return x * by


# Numbers that are 1 in bfloat16, at one line and one instruction.
APART = {
    "two functions on a line": lambda x: lax.cond(
        *(x[0, 0] > 9, lambda x: x * 0.9985, lambda x: x * 1.0012, x)
    ),
    "branches": lambda x: lax.cond(
        *(x[0, 0] > 9, lambda x: scaled(x, 0.9985), lambda x: scaled(x, 1.0012), x)
    ),
    "a backward pass": jax.grad(
        lambda x: (scaled(x, 1.0019) + scaled(x, 0.9985) ** 2).sum()
    ),
    "a result of no use": jax.grad(
        lambda x: (scaled(x, 0.9985), scaled(x, 1.0012).sum())[1]
    ),
}


@pytest.mark.parametrize("name", [*ROUNDED, *APART])
def test_a_number_beside_others(name):
    f = {**ROUNDED, **APART}[name]
    exact = f(np.asarray(X, np.float32) + jnp.zeros((), F32))
    if name == "made an array":
        exact = np.asarray(X, np.float32) * 0.999
    off = np.linalg.norm(np.asarray(f(X), np.float32) - exact) / np.linalg.norm(exact)
    report = audit_precision(f, X)
    assert report.error == pytest.approx(off, rel=0.01)
    if name in ROUNDED and name != "an update":  # whose number stands inside an equation
        assert report.losses[0].constant == "0.999 -> 1"


def test_a_derivatives_own_1_is_no_rounded_number():
    """That of tanh is 1 - tanh^2, on the line of 0.999."""
    f = lambda x: 0.999 * jnp.tanh(x)
    x = jnp.array([0.01, 0.02], BF16)
    slope = lambda x: 0.999 * (1 - np.tanh(np.asarray(x, np.float64)) ** 2)
    off = np.asarray(jax.vmap(jax.grad(f))(x), np.float64) - slope(x)
    report = audit_precision(jax.vmap(jax.grad(f)), x)
    expected = np.linalg.norm(off) / np.linalg.norm(slope(x))
    assert report.error == pytest.approx(expected, rel=0.01)


def test_a_number_that_makes_no_difference_is_not_shown():
    x = jnp.linspace(1, 2, 64).astype(BF16)
    scaled = lambda x: x * lax.rsqrt(jnp.mean(x * x) + 1e-6)
    (loss,) = audit_precision(scaled, x).losses
    assert loss.constant is None
