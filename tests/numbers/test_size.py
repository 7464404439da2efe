"""What is rounded at all, and what an audit compiles."""

import jax
import jax.numpy as jnp
import pytest
from plans_run import Planned, assert_same

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8"),
]
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def normal(seed, *shape, dtype=BF16):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_what_is_rounded_correctly_is_as_written(dtype):
    """Bit for bit, though the rounding is not compared with the program's own."""

    def f(x, y):
        by_rows = x.reshape(-1, 4) / y.reshape(-1, 4)[:, :1]  # by the reciprocal
        squares = jnp.sqrt(y * y), x**2
        return x + y, x - y, x * y, x / y, by_rows, *squares, x.astype(F32) * 3

    edges = [0.0, -0.0, 1e-7, 6e-8, -3e-5, 1.0, 3.0, 6e4, -6e4, jnp.inf]
    edges = jnp.array(edges).astype(dtype)
    x, y = (a.ravel() for a in jnp.meshgrid(edges, edges))
    random = normal(0, 2000, dtype=dtype), normal(1, 2000, dtype=dtype)
    x, y = (jnp.concatenate(pair) for pair in zip((x, y), random))
    planned = Planned(f, x, y)
    assert_same(planned.written(), planned.rounding())
    with jax.disable_jit():
        assert_same(f(x, y), planned.written())


def test_a_cast_to_a_wider_dtype_rounds_nothing():
    def f(x):
        wide = x.astype(F32)
        return wide * 2

    assert not audit_precision(f, normal(0, 9)).losses
