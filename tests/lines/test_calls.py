"""Audits follow a constant through every way in which Python enters and leaves a call."""

import contextlib
import gc
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import needs_record

from dtypeguard import audit
from dtypeguard._lines.calls import Calls

pytestmark = pytest.mark.third_party  # the steps promote


def made():
    return np.float32(2)  # made


def a_generator(x):
    generator = (np.float32(2) for _ in range(2))  # of a generator
    next(generator)
    return x * next(generator)


def a_coroutine(x):
    async def make():
        return np.float32(2)  # of a coroutine

    try:
        make().send(None)
    except StopIteration as stop:
        return x * stop.value


def the_end_of_a_context(x):
    @contextlib.contextmanager
    def filled():
        yield (found := [])
        found.append(x * made())

    with filled() as found:
        pass
    return found[0]


def after_an_error_in_jax(x):
    x = x * 1
    with contextlib.suppress(TypeError):
        x @ None
    with contextlib.suppress(TypeError):
        x * "two"
    return x * made()


X = jax.ShapeDtypeStruct((3,), jnp.bfloat16)
CASES = {
    a_generator: "# of a generator",
    a_coroutine: "# of a coroutine",
    the_end_of_a_context: "# made",
    after_an_error_in_jax: "# made",
}


@needs_record
@pytest.mark.parametrize("step", CASES)
def test_the_line_that_made_a_constant(step):
    report = audit(step, X)
    assert not report.error
    (drift,) = report.drifts
    assert drift.cause.code.endswith(CASES[step])


class Seen(Calls):
    """Remembers the functions that are called from here."""

    def __init__(self):
        self.codes = []

    def into_jax(self, frame, user):
        self.codes.append(frame.f_code)


def test_nothing_is_left_behind():
    with Seen() as seen:
        jnp.issubdtype(np.float32, np.floating)
        jnp.ones(3)
    assert [code.co_name for code in seen.codes][:2] == ["issubdtype", "ones"]
    assert sys.getprofile() is None
    reference = weakref.ref(seen)
    del seen
    gc.collect()
    assert reference() is None


def test_a_profiler_is_left_alone():
    seen = []
    profiler = lambda *event: seen.append(event)
    sys.setprofile(profiler)
    try:
        with Seen() as seen_by_calls:
            jnp.ones(3)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert seen
    assert not seen_by_calls.codes
