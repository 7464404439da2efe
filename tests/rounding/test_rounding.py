"""Stochastic rounding: unbiased, exact where it can be, and reproducible."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import set_x64
from hlo import count_float64

from dtypeguard._rounding.rounding import (
    random_bits,
    round_with,
    stochastic_round,
)

NAMES = (
    "bfloat16",
    "float16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
)
DTYPES = [jnp.dtype(getattr(jnp, name)) for name in NAMES if hasattr(jnp, name)]
SOME = "bfloat16", "float8_e4m3fn"  # of each algorithm one
IN_CI = lambda dtype: [pytest.mark.exhaustive] * (str(dtype) not in SOME)
every_dtype = pytest.mark.parametrize(
    "dtype", [pytest.param(each, id=str(each), marks=IN_CI(each)) for each in DTYPES]
)
F32, U32 = jnp.float32, jnp.uint32
DRAWS = 10**5
LARGEST_BITS = 2**32 - 1


@functools.partial(jax.jit, static_argnums=1)
def rounded(values, dtype, bits):
    return stochastic_round(values, dtype, jnp.broadcast_to(bits, values.shape))


def neighbours(values, dtype):
    """The largest value of `dtype` below and the smallest above; itself twice if exact."""
    nearest = values.astype(dtype)
    as_float = nearest.astype(np.float64)
    largest = jnp.finfo(dtype).max.astype(dtype)
    toward = np.where(values > as_float, largest, -largest)
    other = np.nextafter(nearest, toward).astype(np.float64)
    other = np.where(values == as_float, as_float, other)
    return np.minimum(as_float, other), np.maximum(as_float, other)


@every_dtype
def test_mean_over_all_bits_is_the_value(dtype):
    """Over every combination of the dropped bits, not a sample."""
    dropped = 23 - int(jnp.finfo(dtype).nmant)
    bits = jnp.arange(2**dropped, dtype=U32) << (32 - dropped)
    value = np.float32(-1.2345678)
    values = np.asarray(rounded(jnp.full(bits.shape, value), dtype, bits))
    assert values.astype(np.float64).mean() == value


@every_dtype
def test_rounds_to_one_of_two_neighbours(dtype):
    """Any float32 and any bits; it overflows where round-to-nearest does."""
    generator = np.random.default_rng(0)
    values = generator.integers(0, 2**32, 10**5, np.uint32).view(np.float32)
    largest = np.float32(jnp.finfo(dtype).max)
    with np.errstate(over="ignore"):
        near = largest * np.linspace(0.9, 1.1, 10**4, dtype=np.float32)
    scale = np.float32(jnp.finfo(dtype).smallest_subnormal)
    low = (np.linspace(-40, 40, 10**4) * scale).astype(np.float32)
    values = np.concatenate([values, near, -near, low])
    nearest = np.asarray(jnp.asarray(values).astype(dtype))
    with np.errstate(all="ignore"):
        low, high = neighbours(values, dtype)
    random = generator.integers(0, 2**32, values.shape, np.uint32)
    for bits in (np.uint32(0), np.uint32(LARGEST_BITS), random):
        result = np.asarray(rounded(values, dtype, bits)).astype(np.float64)
        within = np.abs(values) < largest
        # A CPU's own arithmetic takes float32 subnormals for zero.
        exact = np.isnan(values) | (np.abs(values) >= np.finfo(np.float32).tiny)
        taken = (result == low) | (result == high)
        assert (taken | ~exact)[within].all()
        np.testing.assert_array_equal(result[~within], nearest[~within].astype(np.float64))


@every_dtype
@pytest.mark.parametrize("bits", [0, 2**31, LARGEST_BITS])
def test_exact_values_stay_exact(dtype, bits):
    words = np.arange(2 ** (8 * dtype.itemsize)).astype(f"uint{8 * dtype.itemsize}")
    values = words.view(dtype)
    result = np.asarray(rounded(values.astype(np.float32), dtype, np.uint32(bits)))
    is_nan = np.isnan(values.astype(np.float32))
    assert np.isnan(result.astype(np.float32))[is_nan].all()
    np.testing.assert_array_equal(result.view(words.dtype)[~is_nan], words[~is_nan])


@every_dtype
def test_every_nan_stays_nan(dtype):
    words = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32)
    for bits in (0, LARGEST_BITS):
        result = rounded(words.view(np.float32), dtype, np.uint32(bits))
        assert np.isnan(np.asarray(result).astype(np.float32)).all()


def test_plain_casts():
    """To a wider dtype and to 32 bits, the bits do not matter."""
    bits = jnp.uint32(LARGEST_BITS)
    x = jnp.asarray([1.5, -0.1], jnp.bfloat16)
    assert stochastic_round(x, jnp.dtype(F32), bits).dtype == F32
    assert stochastic_round(x, x.dtype, bits) is x
    small = jnp.asarray([1.5, -0.125], jnp.float8_e5m2)
    for dtype in (jnp.bfloat16, jnp.float16):
        wide = stochastic_round(small, jnp.dtype(dtype), bits)
        np.testing.assert_array_equal(wide.astype(F32), small.astype(F32))
    with set_x64(True):
        double = jnp.asarray([1 + 2.0**-40], jnp.float64)
        assert stochastic_round(double, jnp.dtype(F32), bits)[0] == 1
        up = jnp.full(1, LARGEST_BITS, U32)
        assert stochastic_round(double + 1e-3, jnp.dtype(jnp.bfloat16), up)[0] > 1


@every_dtype
def test_derivative_is_that_of_the_cast(dtype):
    """The derivative of the bit operations themselves is zero."""
    x, bits = jnp.asarray([1.3, -0.7], F32), jnp.asarray([5, 6], U32)
    function = lambda x: stochastic_round(x, dtype, bits)
    _, tangent = jax.jvp(function, (x,), (jnp.ones(2, F32),))
    assert tangent.dtype == dtype
    np.testing.assert_array_equal(tangent.astype(F32), 1)
    grad = jax.grad(lambda x: function(x).astype(F32).sum())(x)
    np.testing.assert_array_equal(grad, 1)


# The bits -------------------------------------------------------------------------------

BITS = jax.jit(random_bits, static_argnums=1)
WORDS = {"one": (1, 2, 3), "seed": (2, 2, 3), "leaf": (1, 2, 4)}


def test_bits_are_uniform():
    bits = np.asarray(BITS((0, 0, 0), (DRAWS,)))
    for byte in bits.view(np.uint8).reshape(-1, 4).T:
        counts = np.bincount(byte, minlength=256)
        chi_squared = np.sum(np.square(counts - DRAWS / 256)) / (DRAWS / 256)
        assert abs(chi_squared - 255) < 4 * np.sqrt(2 * 255)


@pytest.mark.parametrize("other", ["seed", "leaf", "neighbour", "row"])
def test_streams_are_independent(other):
    """Seeds and leaves one apart; neighbours and rows in one array."""
    one = np.asarray(BITS(WORDS["one"], (500, 500)))
    if other in WORDS:
        two = np.asarray(BITS(WORDS[other], (500, 500)))
    else:
        two = np.roll(one, 1, axis=1 if other == "neighbour" else 0)
    for shift in (0, 16):  # bfloat16 takes the upper half
        a, b = ((side >> shift & 0xFFFF).astype(np.float64) for side in (one, two))
        correlation = np.corrcoef(a.ravel(), b.ravel())[0, 1]
        assert abs(correlation) < 4 / 500
    different_bits = np.unpackbits((one ^ two).view(np.uint8)).mean()
    assert abs(different_bits - 0.5) < 4 * 0.5 / np.sqrt(32 * one.size)
    if other in WORDS:  # by chance 15 words are common; a shifted sequence has more
        common, expected = np.intersect1d(one, two).size, one.size**2 / 2**32
        assert abs(common - expected) < 4 * np.sqrt(expected)


@every_dtype
@pytest.mark.parametrize(
    "before", ["narrow", pytest.param("float32", marks=pytest.mark.exhaustive), "float64"]
)
def test_after_does_not_change_the_result(dtype, before):
    x = np.linspace(-2, 2, 1000, dtype=np.float32)
    together = lambda x, after: round_with(x, dtype, (1, 2), after)

    @jax.jit
    def results(x, other):
        batch = jax.vmap(together, (None, 0))(x, jnp.stack([other, other]))
        slope = jax.jvp(together, (x, other), (x, other))[1]
        return round_with(x, dtype, (1, 2)), together(x, other), batch[1], slope

    with set_x64(before == "float64"):
        other = -x.astype({"narrow": dtype}.get(before, before))
        other[:3] = np.nan, -1, 1
        bare, *others, slope = (each.tobytes() for each in results(x, other))
    assert others == [bare, bare]
    assert slope == x.astype(dtype).tobytes()


def test_bits_are_a_function_of_words_and_place():
    bits = random_bits((7, 8), (3, 5))
    np.testing.assert_array_equal(bits, BITS((7, 8), (3, 5)))
    np.testing.assert_array_equal(bits.ravel(), random_bits((7, 8), (15,)))
    assert random_bits((7, 8), ()) == bits[0, 0]
    assert random_bits((7, 8), (0, 3)).shape == (0, 3)
    with set_x64(True):
        np.testing.assert_array_equal(bits, random_bits((7, 8), (3, 5)))
        args = (jnp.ones((3, 5), F32), bits)
        round_to = lambda x, bits: stochastic_round(x, jnp.dtype(jnp.float16), bits)
        assert count_float64(round_to, *args) == 0
