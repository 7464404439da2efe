"""Whole programs, bare and guarded: what works goes on working, what fails is explained."""

import harness
import pytest
from harness import (
    AS_THEY_ARE,
    PROGRAMS,
    differences,
    guarded_outside,
    run,
    run_once,
    written,
)
from mistakes import MISTAKES

pytestmark = pytest.mark.third_party


LONG = pytest.mark.exhaustive
# bfloat16 is where most types drift. What x64 changes is the optimizer's affair, not that
# of the framework around it.
IN_X64 = "haiku_rnn", "mixed_precision"
FIRST = {each.program: each for each in reversed(MISTAKES)}.values()


def is_slow(mistake):
    """It takes the longest to compile; the same mistakes are mended in other programs."""
    return mistake.program == "linen_lm"


def is_long(program, configuration):
    return configuration != "bfloat16" and (configuration != "x64" or program not in IN_X64)


@pytest.mark.parametrize(
    ("program", "configuration"),
    [pytest.param(*x, id="-".join(x), marks=[LONG] * is_long(*x)) for x in AS_THEY_ARE],
)
def test_a_program_that_works_goes_on_working(program, configuration):
    bare = run_once(program, configuration, "bare")
    assert bare.ok, (bare.error, bare.drifts)
    for wrap in ("guard", "guard_step"):
        found = differences(program, configuration, wrap)
        assert not found, (wrap, run_once(program, configuration, wrap).error)


@pytest.mark.parametrize("program", PROGRAMS)
def test_both_guards_and_that_of_the_step_outside_of_jit(program, tmp_path):
    path = guarded_outside(program, tmp_path)
    assert path.read_text() != (harness.HERE / path.name).read_text()
    guarded = run(path, "bfloat16", "both")
    assert not guarded.differs_from(run_once(program, "bfloat16", "bare")), guarded.error


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(each, id=each.id, marks=[LONG] * (each not in FIRST or is_slow(each)))
        for each in MISTAKES
    ],
)
def test_a_mistake_is_mended(mistake, tmp_path):
    """It fails or drifts, and goes away with the fix, and with the remedy alone.

    `notes.py` has what is said of each.
    """
    path = written(mistake, tmp_path)
    assert not run(path, mistake.configuration).ok
    fixed = run(written(mistake, tmp_path, is_fixed=True), mistake.configuration)
    assert fixed.ok, (fixed.error, fixed.drifts)
    wraps = ["guard", "guard_step"] if mistake.remedy == "source" else [mistake.remedy]
    for wrap in wraps:
        if mistake.fix or f"dtypeguard.{wrap}(" not in mistake.advice:  # else it has run
            guarded = run(path, mistake.configuration, wrap)
            assert guarded.ok == (wrap == mistake.remedy), (wrap, guarded.error)
