"""Where values stop being finite, in loops, branches and what is between."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtypeguard import audit_precision
from tests.support.helpers import marked, needs_numbers

pytestmark = needs_numbers
X = jax.device_put(np.linspace(0.5, 1, 4))


def scanned(x, turns=5):
    """Its second step makes the infinity, and the later ones compute with it."""

    def step(carry, _):
        other = carry + 1
        carry = jnp.exp(40 * carry)  # infinite
        return carry, other

    carry, others = lax.scan(step, x, None, turns)
    return carry, others.sum(0)


def looped(x):
    def body(carry):
        n, x = carry
        halves = lax.cond(n > 1, lambda x: jnp.log(x - 9), lambda x: x / 2, x)  # infinite
        return n + 1, halves

    return lax.while_loop(lambda carry: carry[0] < 4, body, (0, x))[1] * 2


def batched(x):
    grow = lambda x: jnp.exp(30 * x)  # infinite
    return jax.vmap(lambda x: lax.while_loop(lambda x: x < 1e30, grow, x) * 2)(x)


def jitted(x):
    safe = jnp.where(x > 9, jnp.exp(1000 * x), x)  # what is selected away is no cause
    _, ordered = lax.sort((jnp.log(0 * x), -safe), num_keys=1)  # nor what is left out
    return jax.jit(jnp.log)(ordered)  # infinite


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


# Loops of many turns are compiled.
COMPILED = pytest.param(scanned, (1500,), id="compiled")
PROGRAMS = scanned, looped, batched, jitted, masked, gradient, carried


@pytest.mark.parametrize(
    ("f", "turns"), [*(pytest.param(f, (), id=f.__name__) for f in PROGRAMS), COMPILED]
)
def test_the_first_equation_whose_result_is_not_finite_is_named(f, turns):
    place = rf"what \S*test_finite\.py:{marked(f, '# infinite')} makes"
    with pytest.raises(ValueError, match=rf"not finite in float64 either.*{place}"):
        audit_precision(f, X, *turns)


def test_an_input_that_is_no_number_is_named():
    total = lambda start, x: lax.scan(lambda c, x: (c + x, c), start, x)[0]
    with pytest.raises(ValueError, match=r"First the input x is not"):
        audit_precision(total, 0.0, X * jnp.nan)


def test_what_leads_to_no_output_does_not_hide_the_line():
    def f(x, y):
        chosen = jnp.where(y**3 > 1.0, 1.0, 2.0)
        return x * 2 * chosen

    x, y = jnp.array([1e5, 2.0]), jnp.array([300.0, 2.0])
    assert audit_precision(f, x, y, narrow=jnp.float16).not_finite is not None
