"""Stochastic rounding: unbiased, exact where it can be, and reproducible."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_array_equal

from dtypeguard import apply_updates
from dtypeguard._rounding.rounding import random_bits, round_with, stochastic_round
from tests.support.dtypes import BF16, F16, F32, F64, I32, U32
from tests.support.helpers import assert_same, set_x64, types
from tests.support.hlo import count_float64

FLOAT8 = "e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"
NAMES = "bfloat16", "float16", *(f"float8_{name}" for name in FLOAT8)
DTYPES = [jnp.dtype(getattr(jnp, name)) for name in NAMES if hasattr(jnp, name)]
SOME = "bfloat16", "float8_e4m3fn"  # of each algorithm one
IN_CI = lambda dtype: [pytest.mark.exhaustive] * (str(dtype) not in SOME)
every_dtype = pytest.mark.parametrize(
    "dtype", [pytest.param(each, id=str(each), marks=IN_CI(each)) for each in DTYPES]
)
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
        assert_array_equal(result[~within], nearest[~within].astype(np.float64))


@every_dtype
@pytest.mark.parametrize("bits", [0, 2**31, LARGEST_BITS])
def test_exact_values_stay_exact(dtype, bits):
    words = np.arange(2 ** (8 * dtype.itemsize)).astype(f"uint{8 * dtype.itemsize}")
    values = words.view(dtype)
    result = np.asarray(rounded(values.astype(np.float32), dtype, np.uint32(bits)))
    is_nan = np.isnan(values.astype(np.float32))
    assert_array_equal(result.view(words.dtype)[~is_nan], words[~is_nan])
    nans = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32)
    nans = np.concatenate([nans.view(np.float32), values[is_nan].astype(np.float32)])
    result = np.asarray(rounded(nans, dtype, np.uint32(bits)))
    assert np.isnan(result.astype(np.float32)).all()


@pytest.mark.parametrize(("source", "dtype"), [(F64, F32), (BF16, F32), (BF16, BF16)])
def test_where_32_bits_or_all_are_left_the_cast_is_plain(source, dtype):
    with set_x64(True):
        x = jnp.full(3, 1 + 2.0**-40, source)
        assert_same(
            stochastic_round(x, jnp.dtype(dtype), jnp.full(3, LARGEST_BITS, U32)),
            x.astype(dtype),
        )


# The bits -------------------------------------------------------------------------------

BITS = jax.jit(random_bits, static_argnums=1)


def test_bits_are_uniform():
    for byte in np.asarray(BITS((0, 0, 0), (256_000,))).view(np.uint8).reshape(-1, 4).T:
        chi_squared = np.sum(np.square(np.bincount(byte, minlength=256) - 1000)) / 1000
        assert abs(chi_squared - 255) < 4 * np.sqrt(2 * 255)


@pytest.mark.parametrize(
    ("words", "roll"),
    [((2, 2, 3), (0, 0)), ((1, 2, 4), (0, 0)), ((1, 2, 3), (0, 1)), ((1, 2, 3), (1, 0))],
)
def test_streams_are_independent(words, roll):
    """Seeds and leaves one apart; neighbours and rows in one array."""
    one = np.asarray(BITS((1, 2, 3), (500, 500)))
    two = np.roll(np.asarray(BITS(words, (500, 500))), roll, (0, 1))
    for shift in (0, 16):  # bfloat16 takes the upper half
        a, b = ((side >> shift & 0xFFFF).astype(np.float64) for side in (one, two))
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / 500
    different_bits = np.unpackbits((one ^ two).view(np.uint8)).mean()
    assert abs(different_bits - 0.5) < 4 * 0.5 / np.sqrt(32 * one.size)
    if words != (1, 2, 3):  # by chance 15 words are common; a shifted sequence has more
        common, expected = np.intersect1d(one, two).size, one.size**2 / 2**32
        assert abs(common - expected) < 4 * np.sqrt(expected)


@every_dtype
@pytest.mark.parametrize("before", ["narrow", "float64"])
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
    assert_array_equal(bits, BITS((7, 8), (3, 5)))
    assert_array_equal(bits.ravel(), random_bits((7, 8), (15,)))
    assert random_bits((7, 8), ()) == bits[0, 0]
    assert random_bits((7, 8), (0, 3)).shape == (0, 3)
    with set_x64(True):
        assert_array_equal(bits, random_bits((7, 8), (3, 5)))
        args = (jnp.ones((3, 5), F32), bits)
        round_to = lambda x, bits: stochastic_round(x, jnp.dtype(F16), bits)
        assert count_float64(round_to, *args) == 0


# apply_updates: Optax's sum, no promotion, and stochastic rounding given a key ------------

PAIRS = [(F32, F32), (BF16, F32), (F32, BF16), (BF16, BF16), (F16, BF16), (I32, F32)]


@pytest.mark.third_party
@pytest.mark.parametrize("dtypes", PAIRS)
def test_the_sum_is_optaxs(dtypes):
    params = {"w": jnp.linspace(-7, 7, 101).astype(dtypes[0]), "none": None}
    updates = {"w": jnp.linspace(0, 0.3, 101).astype(dtypes[1]), "none": None}
    ours = apply_updates(params, updates)
    assert_same(ours, optax.apply_updates(params, updates))
    with jax.numpy_dtype_promotion("strict"):
        assert_same(ours, apply_updates(params, updates))


def test_none_and_float0_updates_leave_their_param():
    model = eqx.nn.MLP(2, 2, 4, 1, dtype=F32, key=jax.random.key(0))
    updates = jax.tree_util.tree_map(
        lambda leaf: jnp.ones_like(leaf) if eqx.is_inexact_array(leaf) else None, model
    )
    moved = apply_updates(model, updates)
    assert moved.activation is model.activation
    assert_array_equal(moved.layers[0].bias, model.layers[0].bias + 1)
    assert apply_updates({"w": None}, {"w": jnp.ones(2, F32)}) == {"w": None}
    count = jnp.ones(2, I32)
    assert apply_updates(count, np.zeros(2, jax.dtypes.float0)) is count


@pytest.mark.parametrize("subtree", [{"b": jnp.ones(2)}, {}, (jnp.ones(2),)])
@pytest.mark.parametrize("update", [jnp.ones(2), np.zeros(2, jax.dtypes.float0)])
def test_an_update_in_place_of_a_subtree_is_another_tree(update, subtree):
    params = {"a": subtree, "c": jnp.ones(2)}
    with pytest.raises(ValueError, match=r"another tree.*\n +updates\['a'\]") as error:
        apply_updates(params, {"a": update, "c": jnp.ones(2)})
    assert "give one for each param, or None" in str(error.value)
    assert_same(
        apply_updates(params, {"a": None, "c": jnp.ones(2)}),
        {"a": subtree, "c": jnp.full(2, 2.0)},
    )


@pytest.mark.parametrize(
    ("update", "remedy"),
    [
        (jnp.ones((2, 3)), r"give it in shape \(3,\)"),
        (jnp.ones(3, jnp.complex64), r"give jnp.real\(x\)"),
        ("text", "give an array or None"),
    ],
)
def test_an_update_that_fits_no_param(update, remedy):
    with pytest.raises(TypeError, match=rf"updates\['a'\] .*{remedy}"):
        apply_updates({"a": jnp.ones(3)}, {"a": update})


@pytest.mark.parametrize("dtype", [BF16, F16, jnp.float8_e4m3fn])
@pytest.mark.parametrize("update_dtype", [F32, BF16])
def test_small_steps_are_lost_without_a_key_and_not_with_one(dtype, update_dtype):
    params = {"w": jnp.ones((4, 25_000), dtype)}
    small = float(jnp.finfo(dtype).eps) / 16
    updates = {"w": jnp.full((4, 25_000), small, update_dtype)}
    assert_array_equal(apply_updates(params, updates)["w"].astype(F32), 1)
    rounded = apply_updates(params, updates, key=jax.random.key(0))
    assert types(rounded) == types(params)
    mean = rounded["w"].astype(F32).mean() - 1
    error = small * np.sqrt(15 / params["w"].size)
    assert abs(mean - small) < 4 * error
