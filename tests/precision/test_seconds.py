"""The error comes first; lines are measured as far as the time goes."""

import io
import sys

import jax
import jax.numpy as jnp
import pytest

import dtypeguard
from tests.support.helpers import needs_numbers

pytestmark = needs_numbers


def three_lines(x):
    x = jnp.exp(x)
    x = jnp.sum(x * 1.1, -1)
    return jnp.log(x) / 3


X = jax.random.normal(jax.random.key(0), (5, 7), jnp.bfloat16)


def test_the_error_needs_no_time():
    whole = dtypeguard.audit_precision(three_lines, X, seconds=None)
    none = dtypeguard.audit_precision(three_lines, X, seconds=0)
    assert whole.unreached is None
    assert whole.losses
    assert (none.error, none.outputs) == (whole.error, whole.outputs)
    assert not none.losses
    assert none.unreached.lines == 3
    assert none.unreached.explained == 0
    assert none.headline == whole.headline
    assert "Ended after 0 s: 3 lines were not measured" in str(none)
    assert "No line helps" not in str(none)


class Interrupting(io.StringIO):
    """A terminal on which the user presses Ctrl-C when two of the shares are to come."""

    lines = 0

    def isatty(self):
        return True

    def write(self, text):
        if "measuring line" in text:
            self.lines += 1
            if self.lines == 5:  # three by themselves before
                raise KeyboardInterrupt
        return super().write(text)


def test_ctrl_c_prints_what_there_is(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        dtypeguard.audit_precision(three_lines, X)
    text = capsys.readouterr().out
    assert text.startswith("precision: the outputs are")
    assert "Interrupted: 2 lines were not measured" in text


@pytest.mark.parametrize("seconds", [-1, "a minute", float("nan")])
def test_a_wrong_time(seconds):
    with pytest.raises((TypeError, ValueError), match="how many seconds, 0 for none"):
        dtypeguard.audit_precision(three_lines, X, seconds=seconds)
