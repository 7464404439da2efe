"""The line of a refused operand is found beyond the trace that has it."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.support.advice import raised
from tests.support.dtypes import BF16, F32

pytestmark = pytest.mark.third_party
HALF = jnp.ones(3, BF16)
add_half = jax.jit(lambda x: lax.add(x, HALF))


def looped(x):
    return lax.fori_loop(0, 2, lambda n, carry: add_half(carry), x)


@pytest.mark.parametrize("call", [add_half, jax.jit(add_half), looped, jax.jit(looped)])
def test_an_argument_of_an_inner_function_is_followed_outside(call):
    """By the equations of the outer traces, so that no record is needed."""

    def step(x):
        wide = x.astype(F32)  # the line
        return call(wide * 2)

    rows = raised(lambda: jax.jit(step)(HALF)).dtypeguard_rows
    codes = [row.origin.code for row in rows if row.origin]
    assert "wide = x.astype(F32)  # the line" in codes
