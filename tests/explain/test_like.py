"""`zeros_like(a, shape=())` chooses a dtype; the line that made `a` is not to blame."""

import functools
import sys

import jax
import jax.numpy as jnp
import pytest
from advice import line as line_of, note_on
from jax import lax

from dtypeguard._lines.monitored import Monitored

pytestmark = pytest.mark.third_party  # standard promotion
BF16 = jnp.bfloat16
line = functools.partial(line_of, __file__)


def test_an_item_of_a_first_carry():
    model = jnp.ones((3, 4))

    def run():
        carry = (
            jnp.zeros(3, BF16),
            jnp.zeros_like(model, shape=()),  # of a carry
        )

        def body(carry, x):
            return (carry[0], (carry[1] * x).astype(BF16)), None

        return lax.scan(body, carry, jnp.ones(2, BF16))

    assert f"begins at {line('of a carry')}  promoted" in note_on(run)


def test_an_array_of_the_same_shape_follows_the_other():
    def run():
        model = jnp.ones(3)  # the model
        carry = jnp.zeros_like(model)
        return lax.scan(lambda c, x: ((c * x).astype(BF16), None), carry, jnp.ones(2, BF16))

    assert f"begins at {line('the model')}\n" in note_on(run)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs sys.monitoring")
def test_what_a_function_has_returned_is_recorded():
    with Monitored():
        assert f"begins at {line('in a function')}  promoted" in note_on(recorded)


def recorded():
    def first(model, other):
        zeros = jnp.zeros_like(other)
        return (
            zeros,
            jnp.zeros_like(model, shape=()),  # in a function
        )

    def body(carry, x):
        return (carry[0], (carry[1] * x).astype(BF16)), None

    carry = first(jnp.ones((3, 4)), jnp.ones(3, BF16))
    return jax.lax.scan(body, carry, jnp.ones(2, BF16))
