"""Numbers as a program means them: before a dtype rounds them, or a cast to it does."""

import cProfile
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtypeguard import audit_precision
from tests.support.dtypes import BF16, F16, F32
from tests.support.helpers import average, needs_numbers, normal, off, set_x64

pytestmark = needs_numbers
X = jax.device_put(np.linspace(0.5, 1, 64).astype(BF16))


def unused(x):
    _, b = x * 0.999, x * 0.9985  # both are 1 in bfloat16
    return b


def unused_in_a_call(x):
    return jax.jit(lambda x: (x * 0.999, x * 0.9985))(x)[1]


def unused_in_a_loop(x):
    return lax.scan(lambda h, _: ((h[0] * 0.999, x * 0.9985), None), (x, x), None, 1)[0][1]


def beside_a_loop_of_no_turn(x):
    carry, _ = lax.scan(lambda h, row: (h * 0.99, jnp.sort(row)), x, x[:0, None])
    return carry * 0.9985


PROGRAMS = unused, unused_in_a_call, unused_in_a_loop, beside_a_loop_of_no_turn


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_what_is_computed_and_not_used_takes_its_own_number(f):
    report = audit_precision(f, X)
    assert report.error == pytest.approx(1 / 0.9985 - 1, rel=1e-3)
    assert report.losses[0].constant == "0.9985 -> 1"


def made_on_a_line_of_its_own(x):
    b = jnp.asarray(0.999, x.dtype)
    return b * x


def counted(x):
    step = lambda carry: (carry[0] + 1, carry[1] * 0.999)
    return lax.while_loop(lambda carry: carry[0] < 200, step, (0, x))[1]


def solved(x):
    equation = lambda y: y - x * jnp.asarray(0.999, x.dtype)
    return lax.custom_root(equation, x, lambda g, y: y - g(y), lambda g, y: y)


ROUNDED = {  # before the program sees it; some lines have another number that is 1
    "a line of its own": made_on_a_line_of_its_own,
    "asarray": lambda x: x * jnp.asarray(0.999, x.dtype),
    "array": lambda x: x * jnp.array([0.999] * 64, x.dtype),
    "full": lambda x: x * jnp.full((), 0.999, x.dtype),
    "astype": lambda x: x * np.float32(0.999).astype(x.dtype),
    "convert": lambda x: x * lax.convert_element_type(0.999, x.dtype),
    "type": lambda x: x * x.dtype.type(0.999),
    "a count": counted,
    "a root": solved,
    "an axis": lambda x: jnp.mean(x.reshape(16, 4), 1) * 0.999,
    "a keyword": lambda x: jax.nn.leaky_relu(-x, negative_slope=0.999),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_number_that_is_1_in_bfloat16(name):
    f = ROUNDED[name]
    error = pytest.approx(off(f(X), f(X.astype(F32))), rel=0.01)
    report = audit_precision(f, X)
    assert report.error == error
    assert report.losses[0].constant == "0.999 -> 1"
    assert report.losses[0].alone == error


def test_an_array_that_a_loop_is_given_is_known_as_it_was_meant():
    step = lambda h, _: (h * jnp.array([0.999] * 64, h.dtype), None)
    report = audit_precision(lambda x: lax.scan(step, x, None, 2)[0], X, seconds=0)
    assert report.error == pytest.approx(1 / 0.999**2 - 1, rel=1e-3)


def test_a_number_of_all_turns_of_a_loop_is_wide_where_its_line_is():
    def f(x):
        decay = jnp.asarray(0.99, x.dtype)
        turn = lambda mean, _: (decay * mean + (1 - decay) * x, None)
        return lax.scan(turn, x * 0, None, 20)[0]

    report = audit_precision(f, X)
    assert report.error > 0.1
    assert [loss.origin.code.partition(" ")[0] for loss in report.fix] == ["turn"]
    assert report.left < 1e-6


def test_a_threshold_of_a_dtype_is_that_of_float32():
    def quantized(x):
        scale = jnp.max(abs(x)) / 127
        tiny = jnp.sqrt(jnp.finfo(x.dtype).tiny)
        scale = jnp.where(scale < tiny, jnp.ones_like(scale), scale)
        return jnp.round(x / scale) * scale

    x = jnp.linspace(-0.01, 0.01, 64).astype(F16)
    assert not quantized(x).any()
    assert audit_precision(quantized, x, seconds=0).error == pytest.approx(1)


def test_a_number_of_float32_is_its_shortest_decimal():
    x = X.astype(F32)
    exact = np.asarray(x, np.float64) * 0.1
    report = audit_precision(lambda x: x * 0.1, x)
    assert report.error == pytest.approx(off(x * 0.1, exact), rel=0.01)
    assert report.losses[0].constant == "0.1 -> 0.100000001"
    with set_x64(True):  # and one of float64 is as it is
        report = audit_precision(lambda x: x * np.pi, np.ones(3), narrow=F32, seconds=0)
    assert report.error == pytest.approx(off(np.float32(np.pi), np.pi))


def test_under_a_profiler_the_numbers_are_the_same():
    ignore, args = lambda *_: None, (X, jnp.zeros((20, 64), BF16))
    sys.setprofile(ignore)
    try:
        report = audit_precision(average, *args)
        assert sys.getprofile() is ignore
    finally:
        sys.setprofile(None)
    with cProfile.Profile():
        profiled = audit_precision(average, *args)
    for each in (report, profiled):
        assert each.losses[0].constant == "0.999 -> 1"


def test_audits_in_overlapping_threads_leave_jax_as_it_was():
    both = threading.Barrier(2)

    def f(x):
        both.wait(600)
        return x.astype(x.dtype) * 0.999

    errors = []
    audit = lambda: errors.append(audit_precision(f, X).error)
    threads = [threading.Thread(target=audit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors[0] == errors[1] > 0
    assert not jax.make_jaxpr(lambda x: x.astype(x.dtype))(X).eqns


SQUARE = normal(0, 64, 64, dtype=BF16)


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


def cast_of_a_sine(cast, beside=0):
    def f(x):
        h = jnp.sin(x * 3)
        return jnp.exp(cast(h).astype(F32)) + beside * h.astype(F32)

    return f


def left_by_hand(f, beside=0):
    """What is left of the squared error if the first line is in float32."""
    exact = jnp.sin(SQUARE.astype(F32) * 3)
    exact = jnp.exp(exact) + beside * exact
    with jax.disable_jit():
        return (off(f(SQUARE.astype(F32)), exact) / off(f(SQUARE), exact)) ** 2


@pytest.mark.parametrize("name", CASTS)
def test_what_is_left_is_what_the_advice_leaves(name):
    f = cast_of_a_sine(CASTS[name])
    f(SQUARE)  # what was traced before is seen
    (loss, *_) = audit_precision(f, SQUARE).losses
    assert loss.origin.code == "h = jnp.sin(x * 3)"
    assert loss.left == pytest.approx(left_by_hand(f), rel=0.01)
    assert loss.left > 0.05


@pytest.mark.parametrize("cast", [jnp.asarray, lambda h: h.astype(h.dtype)])
def test_what_asks_for_no_dtype_keeps_it(cast):
    assert audit_precision(cast_of_a_sine(cast), SQUARE).losses[0].left == 0


def test_what_is_used_beside_the_cast_stays_wide():
    f = cast_of_a_sine(astype, beside=1)
    by_hand = left_by_hand(f, beside=1)
    assert audit_precision(f, SQUARE).losses[0].left == pytest.approx(by_hand, rel=0.02)
