"""A cast to the dtype that a value has anyway ends what is kept wide, as where typed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import need, some
from jax import lax

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")
BF16, F32 = jnp.bfloat16, jnp.float32
X = jax.random.normal(jax.random.key(0), (64, 64), BF16)

CASTS = {
    "astype": lambda h: h.astype(BF16),
    "asarray": lambda h: jnp.asarray(h, BF16),
    "asarray by name": lambda h: jnp.asarray(h, dtype="bfloat16"),
    "convert": lambda h: lax.convert_element_type(h, BF16),
    "type": lambda h: jnp.bfloat16(h),
    "jnp.astype": lambda h: jnp.astype(h, BF16),
}


def program(cast):
    def f(x, start=BF16):
        h = jnp.sin(x.astype(start) * 3)
        h = cast(h)
        return jnp.exp(h.astype(F32))

    return f


def in_jit(cast):
    return program(jax.jit(cast))


def in_scan(cast):
    return program(lambda h: lax.scan(lambda _, h: (None, cast(h)), None, h)[1])


def in_checkpoint(cast):
    return program(jax.checkpoint(cast))


def off(made, exact):
    return float(jnp.linalg.norm(made - exact) / jnp.linalg.norm(exact))


def left_by_hand(f):
    """What is left of the squared error if the first line is in float32."""
    exact = jnp.exp(jnp.sin(X.astype(F32) * 3))
    with jax.disable_jit():
        return (off(f(X, F32), exact) / off(f(X), exact)) ** 2


@pytest.mark.parametrize("name", some(CASTS, 3))
def test_what_is_left_is_what_the_advice_leaves(name):
    f = program(CASTS[name])
    (loss, *_) = audit_precision(f, X).losses
    assert loss.origin.code == "h = jnp.sin(x.astype(start) * 3)"
    assert loss.left == pytest.approx(left_by_hand(f), rel=0.01)
    assert loss.left > 0.05


@pytest.mark.parametrize("around", [in_jit, in_scan, in_checkpoint])
def test_what_was_traced_before_is_seen(around):
    f = around(CASTS["astype"])
    f(X)
    loss = audit_precision(f, X).losses[0]
    assert loss.left == pytest.approx(left_by_hand(f), rel=0.01)


@pytest.mark.parametrize("cast", [jnp.asarray, jnp.array, lambda h: h.astype(h.dtype)])
def test_what_asks_for_no_dtype_keeps_it(cast):
    assert audit_precision(program(cast), X).losses[0].left == 0


def test_what_is_used_beside_the_cast_stays_wide():
    def f(x, start=BF16):
        h = jnp.sin(x.astype(start) * 3)
        return h.astype(F32) + jnp.exp(h.astype(BF16).astype(F32))

    exact = jnp.sin(X.astype(F32) * 3)
    exact = exact + jnp.exp(exact)
    by_hand = (off(f(X, F32), exact) / off(f(X), exact)) ** 2
    assert audit_precision(f, X).losses[0].left == pytest.approx(by_hand, rel=0.02)


@pytest.mark.third_party
@pytest.mark.parametrize("dtype", [BF16, None])
def test_a_dtype_of_flax(dtype):
    dense = need("flax.linen").Dense(64, dtype=dtype, param_dtype=F32)
    params = jax.tree.map(lambda x: x.astype(BF16), dense.init(jax.random.key(1), X))

    def f(params, x, start=BF16):
        h = jnp.sin(x.astype(start) * 3)
        return jnp.exp(dense.apply(params, h).astype(F32))

    (loss, *_) = (
        each
        for each in audit_precision(f, params, X).losses
        if each.origin.code.startswith("h = ")
    )
    exact = jnp.sin(X.astype(F32) * 3) @ params["params"]["kernel"].astype(F32)
    exact = jnp.exp(exact)  # the bias is 0
    with jax.disable_jit():
        by_hand = (off(f(params, X, F32), exact) / off(f(params, X), exact)) ** 2
    assert loss.left == pytest.approx(by_hand, rel=0.02)


def test_the_program_of_the_user_is_left_alone():
    f = program(CASTS["astype"])
    before = str(jax.make_jaxpr(f)(X))
    audit_precision(f, X)
    assert str(jax.make_jaxpr(f)(X)) == before
    assert np.asarray(f(X)).dtype == F32
