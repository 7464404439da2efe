"""Where values stop being finite, in loops, branches and what is between."""

import inspect
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS
from dtypeguard._numbers import run

pytestmark = pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")
F16 = jnp.float16
X = jnp.linspace(0.5, 1, 4)


def scanned(x):
    """Its second step makes the infinity, and the later ones compute with it."""

    def step(carry, _):
        other = carry + 1
        carry = jnp.exp(40 * carry)  # infinite
        return carry, other

    carry, others = lax.scan(step, x, None, 5)
    return carry, others.sum(0)


def nested(x):
    def step(x, _):
        inner = lambda n, x: jnp.exp(20 * x)  # infinite
        return lax.fori_loop(0, 3, inner, x) - 1, None

    return lax.scan(step, x, None, 2)[0]


def looped(x):
    def body(carry):
        n, x = carry
        halves = lax.cond(n > 1, lambda x: jnp.log(x - 9), lambda x: x / 2, x)  # infinite
        return n + 1, halves

    return lax.while_loop(lambda carry: carry[0] < 4, body, (0, x))[1] * 2


def batched(x):
    grow = lambda x: jnp.exp(30 * x)  # infinite
    return jax.vmap(lambda x: lax.while_loop(lambda x: x < 1e30, grow, x) * 2)(x)


def branched(x):
    big = lax.cond(x[0] > 0, lambda x: jnp.exp(2000 * x), lambda x: x, x)  # infinite
    return jnp.where(jnp.isfinite(x), big, 0.0)


def jitted(x):
    safe = jnp.where(x > 9, jnp.exp(1000 * x), x)  # what is selected away is no cause
    return jax.jit(lambda x: jnp.log(x - 3))(safe)  # infinite


def masked(x):
    scores = jnp.where(x > 0.7, x, -jnp.inf)  # a constant
    return jax.nn.softmax(scores) / (x - x)  # infinite


def gradient(x):
    roots = lambda x: jnp.sqrt(x * 0)  # infinite
    return jax.grad(lambda x: roots(x).sum())(x)


def carried(x):
    """The infinity comes into the loop, which makes none."""
    large = jnp.exp(2000 * x)  # infinite
    return lax.scan(lambda carry, _: (carry * 0.5 + 1, None), large, None, 3)[0]


@pytest.mark.parametrize("most_eager", [0, 2000])
@pytest.mark.parametrize(
    "f",
    [scanned, nested, looped, batched, branched, jitted, masked, gradient, carried],
    ids=lambda f: f.__name__,
)
def test_the_first_equation_whose_result_is_not_finite_is_named(f, most_eager, monkeypatch):
    """In loops that are compiled, and in those that run turn by turn."""
    monkeypatch.setattr(run, "_MOST_EAGER", most_eager)
    lines, first = inspect.getsourcelines(f)
    (marked,) = (first + n for n, line in enumerate(lines) if line.endswith("# infinite\n"))
    with pytest.raises(ValueError, match=r"not finite in float64 either") as error:
        audit_precision(f, X)
    assert re.search(rf"what \S*test_finite\.py:{marked} makes", str(error.value)), error


def test_an_input_that_is_no_number_is_named():
    with pytest.raises(ValueError, match=r"First the input args\[0\] is not"):
        audit_precision(lambda x: lax.scan(lambda c, x: (c + x, c), 0.0, x)[0], X * jnp.nan)


def test_an_input_behind_others_is_named():
    with pytest.raises(ValueError, match=r"First the input args\[1\] is not"):
        audit_precision(lambda x, y: x + y, X, X * jnp.nan)


def test_what_is_lost_in_a_loop_as_written_alone():
    def f(x):
        def step(carry, _):
            carry = carry * 300  # lost
            return carry, carry / 300

        return lax.scan(step, x, None, 3)[1].sum(0)

    report = audit_precision(f, X.astype(F16))
    assert report.not_finite is not None
    assert "# lost" in report.not_finite.code
