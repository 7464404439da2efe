"""Integers that do not fit, and floats that are narrowed before they become bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtypeguard import audit_precision
from dtypeguard.testing import check_precision
from tests.support.dtypes import F32, F64, I8, I32, U32
from tests.support.helpers import set_x64, users_programs

pytestmark = users_programs
X, KEY = jnp.ones(3), jax.random.key(0)
ZERO = np.uint32(0)


def clock(x, start=ZERO):
    """Ten seconds in nanoseconds, of which an unsigned integer of 32 bits has four."""

    def step(carry, _):
        now, y = carry
        now = now + start.dtype.type(1_000_000_000)  # wraps
        return (now, y + jnp.sin(now.astype(F32) * 1e-9)), None

    return lax.scan(step, (start, x), length=10)[0][1]


def test_a_clock_that_wraps_leads_the_report():
    report = audit_precision(clock, X)
    assert report.error < 1e-6
    row, *_ = report.integers
    assert "# wraps" in row.origin.code
    assert (row.dtype, row.value, row.count, row.size) == ("uint32", 5e9, 2, 10)
    assert f"{row.origin} makes 5e+09, and uint32 ends at 4,294,967,295" in report.headline
    assert report.headline.startswith(str(row.origin))
    with pytest.raises(AssertionError, match="makes integers that do not fit their dtype"):
        check_precision(clock, X, max_error=0.01)
    with set_x64(True):
        assert not audit_precision(lambda x: clock(x, jnp.int64(0)), X).integers


def test_a_loop_whose_body_is_compiled():
    def step(carry, _):
        count, x = carry
        x = jnp.where(x > 0, jnp.sin(3 * x), jnp.cos(2 * x))
        return (count + jnp.int16(40), x), None

    (row,) = audit_precision(
        lambda x: lax.scan(step, (jnp.int16(0), x), length=1000)[0], X
    ).integers
    assert (row.value, row.count, row.size) == (32800, 1, 1000)


def test_a_while_loop_of_many_turns():
    """Twice 100 does not fit int8, in each of the last 20 turns of 40."""

    def turn(state):
        n, total, x = state
        total += jnp.where(n >= 20, I8(100), I8(0)) * I8(2)
        return n + 1, total, jnp.sin(x)

    goes_on = lambda state: state[0] < 40
    row, *_ = audit_precision(
        lambda x: lax.while_loop(goes_on, turn, (0, I8(0), x))[1:], X
    ).integers
    assert (row.value, row.count, row.size) == (200, 20, 40)


Q = jnp.full(40, 100, I8)
LEAST = I8(-128)
MISFITS = {
    "a narrow counter": (
        lambda x: lax.fori_loop(
            0, 200, lambda _, c: (c[0] + I8(1), c[1] + c[0]), (I8(0), x)
        )[1],
        "makes 128, and int8 ends at 127: 1 of 200",
    ),
    "a sum": (lambda x: x * jnp.sum(Q, dtype=I8), "makes 4,000, and int8"),
    "a product of matrices": (lambda x: x * (Q @ Q), "makes 400,000, and int8"),
    "a power": (lambda x: x * 256 ** jnp.arange(2, 5)[jnp.arange(3)], "and int32 ends"),
    "a cast": (lambda x: x * jnp.arange(300, 303).astype(I8), "makes 302, and int8"),
    "a negative": (lambda x: x * -(LEAST * x).astype(I8), "makes 128, and int8"),
    "a size": (lambda x: x * jnp.abs(LEAST * x.astype(I8)), "makes 128, and int8"),
    "below 0": (lambda x: x * (U32(3) - U32(5)), "makes -2, and uint32 ends at 0"),
    "not a number": (lambda x: x * (jnp.log(-x)).astype(int), "makes nan, and int32 ends"),
    "a float": (lambda x: x * (3e9 * x).astype(int), "makes 3e+09, and int32 ends"),
    "four bits": (lambda x: x * (20 * x).astype("uint4").astype(F32), "20, and uint4 ends"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit(name):
    f, told = MISFITS[name]
    headline = audit_precision(lambda x: f(x) * 0.1, X, seconds=0).headline
    assert told in headline.split(": 3 of")[0], headline


def test_integers_made_complex_are_compared_as_real_ones():
    assert audit_precision(lambda x: 1j * jnp.arange(3) * x, X).error == 0


def test_an_output_that_is_not_finite_since_an_integer_wraps():
    with pytest.raises(
        ValueError,
        match=r"ints that overflow\. .*test_integers.py:\d+ makes .*, and int32 ends at",
    ):
        audit_precision(lambda x: x / 256 ** jnp.arange(2, 5), X)


def fnv(x):
    step = lambda h, byte: ((h ^ byte) * U32(16777619), None)
    return x * lax.scan(step, U32(2166136261), jnp.arange(9, dtype=U32))[0].astype(F32)


def jenkins(x):
    """A turn that is written out, of which the sums wrap."""
    h = U32(3_000_000_000) + x.astype(U32)
    h = h + (h << 10)
    return x * (h ^ (h >> 6)).astype(F32)


def congruential(x):
    step = lambda _, state: state * U32(1664525) + U32(1013904223)
    return x * (lax.fori_loop(0, 9, step, U32(1)) >> 16).astype(F32)


LARGE = np.full(3, 1 << 31, np.uint32)
SILENT = {
    "randint": lambda x: x * jax.random.randint(KEY, (3,), 0, 1000),
    "permutation": lambda x: x[jax.random.permutation(KEY, 3)],
    "a key": lambda x: (
        x * jax.random.normal(jax.random.fold_in(KEY, U32(9) * U32(1 << 31)))
    ),
    "fnv": fnv,
    "jenkins": jenkins,
    "congruential": congruential,
    "a ring": lambda x: x[(LARGE * 6 + 7) % 3],
    "guarded": lambda x: x * jnp.where(x > 0, jnp.log(x), jnp.log(-x)).astype(int),
    "selected away": lambda x: x * jnp.where(x < 0, jnp.log(-x).astype(int), 7),
    "a limit": lambda x: x * (jnp.iinfo(I32).max - jnp.arange(3)),
    "terms that cancel": lambda x: (
        x * (jnp.array([2**30 + 1, 1 - 2**30]) @ jnp.array([2**30 + 3, 2**30 + 5]))
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_what_is_meant_to_wrap_or_is_not_used(name):
    assert not audit_precision(lambda x: SILENT[name](x) * 0.1, X, seconds=0).integers


def test_integers_of_64_bits():
    with set_x64(True):
        far = lambda x: x * ((2**62 + jnp.arange(3)) * 2)
        assert audit_precision(far, X, wide=F64, seconds=0).integers[0].count == 3
        near = lambda x: x * (jnp.int64(2**63 - 4) + jnp.arange(3))
        assert not audit_precision(near, X, wide=F64, seconds=0).integers
        x = np.float64(2**63 + 2**11)
        assert audit_precision(lambda x: x.astype(int) + x, x, seconds=0).integers


def test_a_sample_of_narrow_numbers_fits_as_these_do():
    f = lambda x: x * jax.random.uniform(KEY, (40,), maxval=36000).astype(jnp.int16).max()
    (row,) = audit_precision(f, X[0], narrow=jnp.bfloat16, seconds=0).integers
    assert row.count == 5


def test_a_time_that_is_narrowed_before_its_bits_are_a_key():
    """As a Brownian tree did: all of these times have the same noise."""

    def noise(time):
        bits = lax.bitcast_convert_type(time.astype(F32), U32)  # narrowed
        return jax.random.normal(jax.random.fold_in(KEY, bits), (), F64)

    with set_x64(True):
        report = audit_precision(jax.vmap(noise), 1 + 1e-8 * jnp.arange(6))
    (row,) = report.narrowed
    assert "# narrowed" in row.origin.code
    assert row[1:] == ("float64", "float32", 6, 6)
    assert "6 of 6 different numbers become equal" in report.headline
    assert f"not examined: bitcast_convert_type at {row.origin}" in report.headline


def test_a_line_that_is_told_second_keeps_the_name_of_its_file():
    f = lambda x: U32(2**32 - 9) + x.astype(jnp.bfloat16).astype(U32) + x
    report = audit_precision(f, 1000 + jnp.arange(4.0), seconds=0)
    assert f" {report.integers[0].origin} narrows" in report.headline


def test_a_bool_has_nothing_of_the_number_that_it_is_made_of():
    f = lambda x: x.astype(jnp.float16).astype(bool).astype(I32) + x
    assert not audit_precision(f, 0.3 + 1e-5 * jnp.arange(4)).narrowed
