"""Audits follow a constant through every way in which Python enters and leaves a call."""

import collections
import contextlib
import gc
import sys
import threading
import time
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


def a_generator_that_is_closed(x):
    def once():
        yield np.float32(2)  # of a generator that is closed

    generator = once()
    found = [next(generator)]
    generator.close()
    return x * found[0]


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


def an_error_in_a_context(x):
    found = []

    @contextlib.contextmanager
    def filled():
        try:
            yield
        except KeyError:
            found.append(x * made())

    with filled():
        raise KeyError
    return found[0]


def after_an_error(x):
    def fail():
        raise ValueError(x * 1)

    with contextlib.suppress(ValueError):
        fail()
    return x * made()


def after_an_error_in_jax(x):
    x = x * 1
    with contextlib.suppress(TypeError):
        x @ None
    with contextlib.suppress(TypeError):
        x * "two"
    return x * made()


def after_an_audit(x):
    audit(a_generator, X)
    return x * made()


def beside_a_thread(x):
    def work():
        time.sleep(0.05)
        is_over.wait()

    is_over = threading.Event()
    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.1)  # until the thread waits
    try:
        return x * made()
    finally:
        is_over.set()


X = jax.ShapeDtypeStruct((3,), jnp.bfloat16)
CASES = {
    a_generator: "# of a generator",
    a_generator_that_is_closed: "# of a generator that is closed",
    a_coroutine: "# of a coroutine",
    the_end_of_a_context: "# made",
    an_error_in_a_context: "# made",
    after_an_error: "# made",
    after_an_error_in_jax: "# made",
    after_an_audit: "# made",
    beside_a_thread: "# made",
}


@needs_record
@pytest.mark.parametrize("step", CASES)
def test_the_line_that_made_a_constant(step):
    report = audit(step, X)
    assert not report.error
    (drift,) = report.drifts
    assert drift.cause.code.endswith(CASES[step])


class Seen(Calls):
    """Remembers the functions that are called from here, and what they return."""

    def __init__(self):
        self.codes, self.values, self.calls = [], [], collections.Counter()

    def into_jax(self, frame, user):
        self.codes.append(frame.f_code)
        return self.values.append

    def call(self, frame):
        self.calls[frame.f_code] += 1
        return super().call(frame)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="a trace function sees all calls")
def test_functions_that_only_jax_calls_are_seen_once():
    for _ in range(2):  # the next watch sees them again
        with Seen() as seen:
            for number in range(20):
                jax.make_jaxpr(lambda x, n=number: jnp.sin(x) * n)(1.0)
        assert seen.calls[jax.typeof.__code__] == 1


def test_nothing_is_left_behind():
    with Seen() as seen:
        jnp.issubdtype(np.float32, np.floating)
    jnp.issubdtype(np.float32, np.floating)
    assert seen.values == [True]
    if sys.version_info >= (3, 12):
        sys.monitoring.use_tool_id(3, "other")
        assert sys.monitoring.get_events(3) == 0
        assert sys.monitoring.get_local_events(3, jnp.issubdtype.__code__) == 0
        sys.monitoring.free_tool_id(3)
    reference = weakref.ref(seen)
    del seen
    gc.collect()
    assert reference() is None
