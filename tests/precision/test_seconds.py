"""The error comes first; lines are measured as far as the time goes."""

import math
import sys

import jax
import jax.numpy as jnp
import pytest

import dtypeguard
from dtypeguard._precision import fix, losses
from tests.support.helpers import Terminal, needs_numbers, normal

pytestmark = needs_numbers


def three_lines(x):
    x = jnp.exp(x)
    x = jnp.sum(x * 1.1, -1)
    return jnp.log(x) / 3


X = normal(0, 5, 7, dtype=jnp.bfloat16)


def test_the_error_needs_no_time():
    whole = dtypeguard.audit_precision(three_lines, X, seconds=None)
    none = dtypeguard.audit_precision(three_lines, X, seconds=0)
    assert whole.unreached is None
    assert whole.losses
    assert (none.error, none.outputs) == (whole.error, whole.outputs)
    assert not none.losses
    assert none.unreached.lines == 3
    assert none.unreached.explained == 0
    assert math.isnan(none.left)
    assert math.isnan(none.fixed.price)
    assert none.headline == whole.headline
    assert "Ended after 0 s. Lines not measured: 3; the others explain 0%" in str(none)
    assert "No line helps" not in str(none)


def test_a_plan_is_searched_within_the_time():
    matrix = jax.random.normal(jax.random.key(0), (16, 16))
    report = dtypeguard.audit_precision(
        jnp.matmul, matrix, matrix, narrow=jnp.bfloat16, tolerance=1e-3, seconds=0
    )
    assert report.search is None
    assert math.isnan(report.fixed.error)
    assert "The search for a fix has not come to its end." in str(report)


class Interrupting(Terminal):
    """A terminal on which the user presses Ctrl-C when it shows a text again."""

    def __init__(self, awaited, times):
        super().__init__()
        self.awaited = awaited
        self.times = times

    def write(self, text):
        if self.awaited in text:
            self.times -= 1
            if not self.times:
                raise KeyboardInterrupt
        return super().write(text)


def interrupted(function, x, awaited, times, monkeypatch, capsys):
    """Returns what is printed when the user presses Ctrl-C."""
    monkeypatch.setattr(sys, "stderr", Interrupting(awaited, times))
    with pytest.raises(KeyboardInterrupt):
        dtypeguard.audit_precision(function, x, seconds=None)
    return capsys.readouterr().out


def test_ctrl_c_prints_what_there_is(monkeypatch, capsys):
    # Three lines by themselves, one share, and two are to come.
    text = interrupted(three_lines, X, "measuring line", 5, monkeypatch, capsys)
    assert text.startswith("precision: the outputs are")
    assert "Interrupted. Lines not measured: 2;" in text
    text = interrupted(three_lines, X, "small set of lines", 1, monkeypatch, capsys)
    assert "Interrupted. Lines not measured: 0; the others explain 100%" in text


def test_ctrl_c_in_the_search_for_a_fix_prints_its_runs(monkeypatch, capsys):
    def search(*args):
        fix.fix_of(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(losses, "fix_of", search)
    with pytest.raises(KeyboardInterrupt):
        dtypeguard.audit_precision(three_lines, X)
    monkeypatch.undo()
    most_important = str(dtypeguard.audit_precision(three_lines, X)).splitlines()[2]
    assert most_important in capsys.readouterr().out


def overflowing(x):
    x = x * 1.001
    x = x * 1.002
    x = x * 1.003
    y = jnp.exp(x * 5)
    return y / jnp.sum(y)


HALVES = jnp.linspace(0.5, 4, 32, dtype=jnp.float16)


def test_no_line_explains_an_overflow_before_all_are_measured(monkeypatch, capsys):
    text = interrupted(overflowing, HALVES, "measuring line", 2, monkeypatch, capsys)
    assert "Lines not measured: 5; the others explain 0%" in text
    assert "100%" not in text


def test_an_end_before_a_line_of_a_group_was_measured_alone(monkeypatch, capsys):
    def overflowing_sum(params):
        # The cast of each leaf is a line: enough of them are measured in groups.
        updates = {name: jnp.full(32, 1e-3) for name in params}
        params = dtypeguard.apply_updates(params, updates)
        y = jnp.exp(sum(params.values()))
        y = y * 1.01
        return y / jnp.sum(y)

    params = {f"w{number}": HALVES / 4 for number in range(24)}
    text = interrupted(
        overflowing_sum, params, "looking for a small set", 1, monkeypatch, capsys
    )
    assert "the outputs are not finite" in text
    assert "Interrupted. Lines not measured: 0;" in text


def test_the_part_of_decisions_is_unknown_without_time():
    def decided(x):
        return jnp.where(jnp.sin(x * 33.3) > 0.1, 1.0, 2.0)

    x = jax.random.normal(jax.random.key(0), (256,), jnp.bfloat16)
    whole = dtypeguard.audit_precision(decided, x, seconds=None)
    none = dtypeguard.audit_precision(decided, x, seconds=0)
    assert whole.decisions.share == pytest.approx(1)
    assert none.decisions.lines == whole.decisions.lines
    assert math.isnan(none.decisions.share)
    assert "decisions that flipped\n" in str(none)
    assert none.unreached.explained == 0


@pytest.mark.parametrize("seconds", [-1, "a minute", float("nan")])
def test_a_wrong_time(seconds):
    with pytest.raises((TypeError, ValueError), match="how many seconds, 0 for none"):
        dtypeguard.audit_precision(three_lines, X, seconds=seconds)
