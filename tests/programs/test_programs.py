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


# In bfloat16 most types drift: all programs run in it, a few of them in all ways, and the
# rest with `-m exhaustive`.
SOME = "equinox_rnn", "mixed_precision", "nnx_classifier"
FIRST = {each.program: each for each in reversed(MISTAKES)}.values()


def marked(is_long, *values, **options):
    marks = [pytest.mark.exhaustive] * is_long
    return pytest.param(*values, marks=marks, **options)


@pytest.mark.parametrize(
    ("program", "configuration"),
    [
        marked(x[1] != "bfloat16" and x != ("haiku_rnn", "x64"), *x, id="-".join(x))
        for x in AS_THEY_ARE
    ],
)
def test_a_program_that_works_goes_on_working(program, configuration):
    bare = run_once(program, configuration, "bare")
    assert bare.ok, (bare.error, bare.drifts)
    for wrap in ("guard", "guard_step"):
        found = differences(program, configuration, wrap)
        assert not found, (wrap, run_once(program, configuration, wrap).error)


@pytest.mark.parametrize("program", [marked(x not in SOME, x) for x in PROGRAMS])
def test_both_guards_and_that_of_the_step_outside_of_jit(program, tmp_path):
    path = guarded_outside(program, tmp_path)
    assert path.read_text() != (harness.HERE / path.name).read_text()
    guarded = run(path, "bfloat16", "both")
    assert not guarded.differs_from(run_once(program, "bfloat16", "bare")), guarded.error


@pytest.mark.parametrize(
    "mistake",
    [
        marked(each not in FIRST or each.program not in SOME, each, id=each.id)
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
