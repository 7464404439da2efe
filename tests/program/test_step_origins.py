"""Audits of a step name the line of every planted drift, and the line that forced it."""

import planted_steps
import pytest

from dtypeguard import audit_step

pytestmark = pytest.mark.third_party


@pytest.mark.parametrize("name", planted_steps.CASES)
def test_planted(name):
    case = planted_steps.CASES[name]
    report = audit_step(case.step, *case.args, **case.options)
    assert report.error is None
    (drift,) = report.drifts
    assert (drift.path, drift.where) == (case.path, "carry")
    assert report.compilations == 2
    planted_steps.assert_told(drift, case, name)


def test_every_case_is_marked():
    assert len(planted_steps.CASES) >= 25
    assert all(planted_steps.marked(name, "promotion") for name in planted_steps.CASES)
    unforced = {n for n in planted_steps.CASES if not planted_steps.marked(n, "operand")}
    assert unforced == {
        "counter_that_becomes_a_float",
        "replay_buffer_of_another_type",
        "flag_that_becomes_a_float",
        "spectrum",
        "gradient_cast_by_hand",
        "keyword_argument",
        "time_that_becomes_weak",
        "two_leaves_meet",
    }
