"""A number without a point is said for an int of a carry only where it leaves one."""

import jax.numpy as jnp
import pytest
from advice import applied, line, note_on
from jax import lax

pytestmark = pytest.mark.third_party  # ints become floats


def _loop(body):
    return lax.while_loop(lambda n: n < 3, body, jnp.zeros((), jnp.int32))


def of_a_true_division():
    return _loop(lambda n: n / 2.0)


def of_a_root():
    return _loop(lambda n: jnp.sqrt(n + 1.0))


def of_an_angle():
    return _loop(lambda n: jnp.arctan2(n, 1.0))


def of_a_negative_power():
    return _loop(lambda n: n**-1.0)


def of_a_power_that_is_called():
    return _loop(lambda n: jnp.power(n, -2.0))


def of_a_float32():
    return _loop(lambda n: n * jnp.float32(1.0))


@pytest.mark.parametrize(
    "function",
    [
        of_a_true_division,
        of_a_root,
        of_an_angle,
        of_a_negative_power,
        of_a_power_that_is_called,
        of_a_float32,
    ],
)
def test_a_number_that_would_leave_a_float_is_not_said(function):
    note = note_on(function)
    assert " in place of 1.0" not in note
    assert " in place of 2.0" not in note
    assert " in place of -" not in note
    assert "start n as float32" in note


def of_a_power():
    return _loop(lambda n: (n + 2) ** 2.0)


def test_a_whole_exponent_is_said():
    assert " write 2 in place of 2.0, or " in note_on(of_a_power)
    assert applied(of_a_power, ("2.0", "2"))() == 4


def of_a_negative_number():
    return _loop(lambda n: jnp.where(n < 3, n + 3, -1.0))  # the sign


def test_a_number_with_its_sign():
    place = line(__file__, "the sign")
    note = note_on(of_a_negative_number)
    assert f"At {place} write -1 in place of -1.0, or " in note
    assert applied(of_a_negative_number, ("-1.0", "-1"))() == 3
