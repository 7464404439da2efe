"""A cast to the dtype that a value has anyway ends what is kept wide, as where typed."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from dtypeguard import audit_precision
from tests.support.dtypes import BF16, F32
from tests.support.helpers import needs_numbers, normal

pytestmark = needs_numbers
X = normal(0, 64, 64, dtype=BF16)


def astype(h):
    return h.astype(BF16)


CASTS = {
    "astype": astype,
    "asarray": lambda h: jnp.asarray(h, dtype="bfloat16"),
    "convert": lambda h: lax.convert_element_type(h, BF16),
    "type": lambda h: BF16(h),
    "in jit": jax.jit(astype),
    "in checkpoint": jax.checkpoint(astype),
}


def program(cast, beside=0):
    def f(x):
        h = jnp.sin(x * 3)
        return jnp.exp(cast(h).astype(F32)) + beside * h.astype(F32)

    return f


def off(made, exact):
    return float(jnp.linalg.norm(made - exact) / jnp.linalg.norm(exact))


def left_by_hand(f, beside=0):
    """What is left of the squared error if the first line is in float32."""
    exact = jnp.sin(X.astype(F32) * 3)
    exact = jnp.exp(exact) + beside * exact
    with jax.disable_jit():
        return (off(f(X.astype(F32)), exact) / off(f(X), exact)) ** 2


@pytest.mark.parametrize("name", CASTS)
def test_what_is_left_is_what_the_advice_leaves(name):
    f = program(CASTS[name])
    f(X)  # what was traced before is seen
    (loss, *_) = audit_precision(f, X).losses
    assert loss.origin.code == "h = jnp.sin(x * 3)"
    assert loss.left == pytest.approx(left_by_hand(f), rel=0.01)
    assert loss.left > 0.05


@pytest.mark.parametrize("cast", [jnp.asarray, lambda h: h.astype(h.dtype)])
def test_what_asks_for_no_dtype_keeps_it(cast):
    assert audit_precision(program(cast), X).losses[0].left == 0


def test_what_is_used_beside_the_cast_stays_wide():
    f = program(astype, beside=1)
    by_hand = left_by_hand(f, beside=1)
    assert audit_precision(f, X).losses[0].left == pytest.approx(by_hand, rel=0.02)
