"""The program that an audit runs stays small: what it takes to compile and to run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_BARRIER
from dtypeguard._paired.pair import Paired
from dtypeguard._paired.primitives import jaxprs_in
from dtypeguard._paired.python_numbers import PythonNumbers
from dtypeguard._paired.values import Formats
from dtypeguard._program.graph import open_jaxpr

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_BARRIER, reason="needs JAX >= 0.5"),
]
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def normal(seed, *shape, dtype=BF16):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def chain(length):
    """Sums, products and quotients of bfloat16."""

    def f(x, y):
        for _ in range(length):
            x = (x + y) * x / (y * y - x)
        return x

    return f


def size(jaxpr):
    """The equations of a jaxpr and of those inside it."""
    inside = lambda eqn: sum(map(size, jaxprs_in(eqn.params)))
    return sum(1 + inside(eqn) for eqn in open_jaxpr(jaxpr).eqns)


def sizes(f, *args):
    """The equations of a program, and of the one that an audit runs."""
    with PythonNumbers() as numbers:
        program = jax.make_jaxpr(f)(*args)
    paired = Paired(program, Formats(np.dtype("float32")), numbers)
    run = lambda amounts, args: [v.wide for v in paired(amounts, args)]
    return size(program), size(jax.make_jaxpr(run)(jnp.ones(1), list(args)))


def test_each_operation_becomes_a_few():
    """Most of what an audit takes is to compile this program."""
    args = normal(0, 9), normal(1, 9)
    (own, audit), (more, larger) = sizes(chain(4), *args), sizes(chain(12), *args)
    assert larger - audit <= 6 * (more - own)


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
    with PythonNumbers() as numbers:
        program = jax.make_jaxpr(f)(x, y)
    paired = Paired(program, Formats(np.dtype("float32")), numbers)
    run = jax.jit(lambda amounts, args: [v[:2] for v in paired(amounts, args)])
    for narrow, wide in run(jnp.ones(128), [x, y]):
        np.testing.assert_array_equal(narrow.astype(F32), wide)


def test_a_cast_to_a_wider_dtype_rounds_nothing():
    def f(x):
        wide = x.astype(F32)
        return wide * 2

    assert audit_precision(f, normal(0, 9)).lines == 0
