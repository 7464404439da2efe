"""Warnings of an attempt that does not count are not shown; all others are."""

import threading
import warnings

import jax
import jax.numpy as jnp
import pytest
from helpers import needs_x64_scope, set_x64

from dtypeguard import guard_step
from dtypeguard._source.warn import Attempts

F32, BF16 = jnp.float32, jnp.bfloat16


def shown(call, action="always"):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter(action)
        call()
    return [str(each.message) for each in found]


def mixes(x):
    """A loop that only traces where its literals have the type of `x`."""
    return jax.lax.scan(lambda s, _: (s + jnp.ones(3).sum(), None), x, None, length=2)[0]


@needs_x64_scope
@pytest.mark.parametrize("action", ["always", "default"])
def test_a_step_that_is_run_with_x64_off(action):
    def step(c):
        warnings.warn(f"x64 is {jax.config.jax_enable_x64}", stacklevel=1)
        warnings.warn("of any attempt", stacklevel=1)
        jnp.zeros(3, F32).at[0].set(jnp.arange(3.0)[1])  # warns if it is 64-bit
        return mixes(c)

    with set_x64(True):
        found = shown(lambda: guard_step(step)(jnp.ones(3, F32)), action)
    assert found[:2] == ["x64 is False", "of any attempt"]
    (own,) = found[2:]
    assert own.startswith("step failed with x64 on and was run with it off")


def test_all_are_shown_where_the_step_raises_and_errors_stay_errors():
    def step(c):
        warnings.warn("before the error", stacklevel=1)
        raise TypeError("no such thing")

    def call():
        with pytest.raises(TypeError, match="no such thing"):
            guard_step(step)(jnp.ones(3))

    assert shown(call) == ["before the error"]
    with pytest.raises(UserWarning, match="before the error"):
        shown(lambda: guard_step(step)(jnp.ones(3)), "error")


def test_what_is_shown_once_is_not_shown_anew():
    guarded = guard_step(lambda c: warnings.warn("once", stacklevel=1) or c)
    calls = lambda: [guarded(jnp.ones(3)) for _ in range(3)]
    assert shown(calls, "default") == ["once"]


def test_attempts_in_several_threads_leave_what_shows_warnings():
    """And each still holds its own back, whichever of them ends first."""
    first_began, second_began, first_ended = (threading.Event() for _ in range(3))

    def first():
        with Attempts():
            first_began.set()
            second_began.wait()
        first_ended.set()

    def second():
        first_began.wait()
        with Attempts() as attempts:
            second_began.set()
            first_ended.wait()
            warnings.warn("discarded", stacklevel=1)
            attempts.again()
            warnings.warn("of the second", stacklevel=1)

    def call():
        before = warnings.showwarning
        threads = [threading.Thread(target=target) for target in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert warnings.showwarning is before

    assert shown(call) == ["of the second"]


def test_a_step_that_records_warnings_around_a_guard():
    def step(c):
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always")
            guard_step(lambda x: warnings.warn("inside", stacklevel=1) or x)(c)
            warnings.warn("after", stacklevel=1)
        assert [str(each.message) for each in recorded] == ["inside", "after"]
        return c

    with set_x64(True):
        assert shown(lambda: guard_step(step)(jnp.ones(3))) == []
