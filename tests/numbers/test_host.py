"""What NumPy computes in place of XLA, against XLA: equal in all bits."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtypeguard._numbers.evaluate import unchanged_dtype
from dtypeguard._numbers.host import NotOnHost, computed_on_host
from tests.support.helpers import set_x64

_WIDENED = []
if "out_dtype" in inspect.signature(lax.mul).parameters:
    _WIDENED.append(lambda a, b: lax.mul(a, b, out_dtype=np.float64))
_FUNCTIONS = [
    lax.add,
    lambda a, b: lax.mul(a.view(np.int16), b.view(np.int16)),
    lax.sub,
    lax.mul,
    lax.div,
    lambda a, b: lax.div_p.bind(a[:1], b),
    lambda a, b: lax.select(a > b, a, b),
    lambda a, b: lax.select_n(a > b, a),
    *_WIDENED,
    lax.max,
    lax.min,
    lax.eq,
    lax.ne,
    lax.lt,
    lax.le,
    lax.gt,
    lax.ge,
    lambda a, b: -a,
    lambda a, b: lax.sqrt(a),
    lambda a, b: lax.integer_pow(a, 2),
    lambda a, b: lax.convert_element_type(a, jnp.bfloat16),
    lambda a, b: lax.convert_element_type(a, np.float16),
    lambda a, b: lax.convert_element_type(a, np.float32),
    lambda a, b: lax.convert_element_type(a, jnp.float8_e4m3fn),
    lambda a, b: lax.convert_element_type(a, np.int32),
    lambda a, b: lax.convert_element_type(a.astype(jnp.int4), jnp.uint4),
    lambda a, b: lax.convert_element_type(a > b, a.dtype),
    lambda a, b: a.reshape(7, -1),
    lambda a, b: a.reshape(7, -1).T,
    lambda a, b: a.reshape(7, -1).reshape(-1, 7, order="F"),
    lambda a, b: a * b[:1],
    lambda a, b: lax.broadcast_in_dim(a[:70].reshape(7, 10), (7, 3, 10), (0, 2)),
    lambda a, b: a[:1].reshape(()) * b[:1].reshape(()),
    lambda a, b: lax.expand_dims(a, (0, 2)),
]


def _numbers(dtype, seed):
    """Numbers of all sizes, some below the normal ones, some that are none."""
    generator = np.random.default_rng(seed)
    powers = 2.0 ** generator.integers(-50, 60, 1400)
    numbers = generator.standard_normal(1400) * powers
    numbers[:700] = generator.standard_normal(700)
    numbers[:7] = [0, 1, np.inf, -np.inf, np.nan, 6e-8, 0.009765625 + 1e-12]
    generator.shuffle(numbers)
    with np.errstate(all="ignore"):
        return numbers.astype(dtype)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64"])
def test_numpy_has_the_bits_of_xla(name):
    operands = _numbers(jnp.dtype(name), 0), _numbers(jnp.dtype(name), 1)
    _check_equations(_FUNCTIONS, operands)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("divisors", [(), (7, 1), (1, 200)])
def test_by_what_is_repeated_xla_divides_with_a_reciprocal(name, divisors):
    numbers = _numbers(jnp.dtype(name), 0).reshape(7, 200)
    divisor = numbers.ravel()[: np.prod(divisors, dtype=int)].reshape(divisors)
    jaxpr = jax.make_jaxpr(lax.div_p.bind)(numbers, divisor)
    with np.errstate(all="ignore"):
        result = computed_on_host(jaxpr.eqns[0], [numbers, divisor], unchanged_dtype)
    expected = np.asarray(jax.jit(lax.div_p.bind)(numbers, divisor))
    result = result.astype(np.float64)
    np.testing.assert_array_equal(result, expected.astype(np.float64))


def test_what_is_smaller_than_the_normal_numbers_is_0_to_xla():
    def to_float64(a, b):
        return lax.convert_element_type(a, np.float64)

    operands = np.float32([2.0**-130, 2.0**-100]), np.float32([2.0**-130, 2.0**-30])
    _check_equations([lax.add, lax.max, to_float64], operands)


def _check_equations(functions, operands):
    with set_x64(True), np.errstate(all="ignore"):
        jaxprs = [jax.make_jaxpr(function)(*operands) for function in functions]
        given, results = _by_xla(jaxprs, operands)
        eqns = [eqn for jaxpr in jaxprs for eqn in jaxpr.eqns]
        for eqn, arrays, expected in zip(eqns, given, results, strict=True):
            try:
                result = computed_on_host(eqn, arrays, unchanged_dtype)
            except NotOnHost:
                continue
            assert result.dtype == expected.dtype
            result = result.astype(np.float64)
            np.testing.assert_array_equal(
                result, np.asarray(expected).astype(np.float64), str(eqn)
            )


def _by_xla(jaxprs, operands):
    """Returns what XLA gives each equation, and what it makes of it, each by itself."""

    @jax.jit
    def run(*operands):
        given, results = [], []
        for jaxpr in jaxprs:
            values = dict(zip(jaxpr.jaxpr.invars, operands))
            for eqn in jaxpr.eqns:
                arrays = lax.optimization_barrier([values[var] for var in eqn.invars])
                result = lax.optimization_barrier(eqn.primitive.bind(*arrays, **eqn.params))
                values[eqn.outvars[0]] = result
                given.append(arrays)
                results.append(result)
        return given, results

    return run(*operands)
