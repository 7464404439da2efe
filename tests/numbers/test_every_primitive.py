"""Each primitive and random programs by a plan, against JAX op by op and in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.every_primitive import OF_A_DTYPE, PRIMITIVES
from tests.support.helpers import off, set_x64, some, users_programs
from tests.support.numeric import compiled, inputs, source
from tests.support.plans_run import Planned, assert_same

pytestmark = users_programs
WIDE = {"bfloat16": "float32", "float16": "float32", "float32": "float64"}


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] * (number % 3 > 0))
        for number, name in enumerate(PRIMITIVES)
    ],
)
def test_a_primitive_is_as_jax_has_it(name, dtype):
    """As written, with all lines rounding, and in wide types."""
    f, *args = PRIMITIVES[name]
    narrow = [x.astype(dtype) for x in args]
    arrays = jax.device_put(narrow)
    try:
        with jax.disable_jit():
            own = jax.tree_util.tree_leaves(f(*arrays))
    except (TypeError, ValueError, NotImplementedError):
        pytest.skip("not a program of JAX")
    planned = Planned(f, *arrays, wide=WIDE[dtype])
    with set_x64(WIDE[dtype] == "float64"):
        assert_same(own, planned.written(), "as written")
        assert_same(own, planned.rounding(), "with all lines rounding")
        assert not planned.program.unexamined
        if name in OF_A_DTYPE:
            return
        with jax.disable_jit():
            exact = f(*jax.device_put([x.astype(WIDE[dtype]) for x in narrow]))
        for wide, other in zip(planned.wide(), jax.tree_util.tree_leaves(exact)):
            assert_close(wide, other)


def test_a_product_of_two_dtypes_is_as_jax_has_it():
    def f(x, y):
        return jax.lax.dot(x, y, preferred_element_type=x.dtype)

    x = jax.random.normal(jax.random.key(0), (8, 64), jnp.bfloat16)
    y = jax.random.normal(jax.random.key(1), (64, 16))
    assert_same([f(x, y)], Planned(f, x, y).written())


def test_a_product_in_float64_is_none_of_its_operands_dtype():
    def f(x):
        return jax.lax.dot(x, x), jax.lax.dot(x, x, preferred_element_type=jnp.float64)

    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    with set_x64(True):
        assert_same(f(x), Planned(f, x).written())


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_what_is_rounded_correctly_is_as_written_bit_for_bit(dtype):
    def f(x, y):
        by_rows = x.reshape(-1, 4) / y.reshape(-1, 4)[:, :1]  # by the reciprocal
        squares = jnp.sqrt(y * y), x**2
        return x + y, x - y, x * y, x / y, by_rows, *squares, x.astype(np.float32) * 3

    edges = [0.0, -0.0, 1e-7, 6e-8, -3e-5, 1.0, 3.0, 6e4, -6e4, jnp.inf]
    edges = jnp.array(edges).astype(dtype)
    x, y = (a.ravel() for a in jnp.meshgrid(edges, edges))
    random = (jax.random.normal(jax.random.key(n), (2000,)).astype(dtype) for n in (0, 1))
    x, y = (jnp.concatenate(pair) for pair in zip((x, y), random))
    planned = Planned(f, x, y)
    assert_same(planned.written(), planned.rounding())
    with jax.disable_jit():
        assert_same(f(x, y), planned.written())


def assert_close(one, other, units=16):
    """To some units in the last place of the largest."""
    assert one.shape == other.shape
    if not jnp.issubdtype(other.dtype, jnp.inexact):
        np.testing.assert_array_equal(one, other)
        return
    assert one.dtype == other.dtype
    most = float(np.max(np.abs(np.asarray(other)[np.isfinite(other)]), initial=1e-30))
    atol = units * float(jnp.finfo(other.dtype).eps) * most
    np.testing.assert_allclose(one, other, 0, atol)


@pytest.mark.parametrize("seed", some(range(24), 3))
def test_either_end_is_what_it_should_be(seed):
    """With no line rounding the program in float64, and with all of them as written."""
    text, args = source(seed), inputs(seed)
    planned = Planned(compiled(text, f"generated_{seed}.py"), *args, wide="float64")
    with set_x64(True):
        exact = compiled(text, f"exact_{seed}.py", wide=True)
        wanted = jax.jit(exact)(*(x.astype(jnp.float64) for x in args))
        written, every, none = planned.written(), planned.rounding(), planned.rounding(())
    with jax.disable_jit():
        own = compiled(text, f"generated_{seed}.py")(*args)
    assert not planned.program.unexamined
    for line, wide, exact in zip(text.splitlines()[1:], none, wanted):
        assert off(wide, exact) < 1e-7, line
    assert_same(written, every)
    assert_same(own, written)
