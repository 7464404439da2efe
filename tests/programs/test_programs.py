"""Whole programs, bare and guarded: what works goes on working, what fails is mended."""

import pytest
from harness import MISTAKES, PROGRAMS, differences, run, run_once

pytestmark = pytest.mark.third_party


# In bfloat16 most types drift: all programs run in it, a few of them with a mistake, and
# the rest with `-m exhaustive`. In float32 a guarded program is the bare one.
SOME = "equinox_rnn", "mixed_precision", "nnx_classifier"
FIRST = {each.program: each for each in reversed(MISTAKES)}.values()


def marked(is_long, *values, **options):
    marks = [pytest.mark.exhaustive] * is_long
    return pytest.param(*values, marks=marks, **options)


@pytest.mark.parametrize(
    ("program", "configuration"),
    [
        *((program, "bfloat16") for program in PROGRAMS),
        *(marked(p != "haiku_rnn", p, "x64") for p in PROGRAMS if p != "svi"),
    ],
)
def test_a_program_that_works_goes_on_working(program, configuration):
    bare = run_once(program, configuration, "bare")
    assert bare.ok, (bare.error, bare.drifts)
    for wrap in ("guard", "guard_step"):
        found = differences(program, configuration, wrap)
        assert not found, (wrap, run_once(program, configuration, wrap).error)


@pytest.mark.parametrize(
    "mistake",
    [
        marked(m not in FIRST or m.program not in SOME, m, id=f"{m.program}-{m.name}")
        for m in MISTAKES
    ],
)
def test_a_mistake_is_mended(mistake, tmp_path):
    """By a guard, or by none where the source has to change; `notes.py` has the notes."""
    path = tmp_path / f"{mistake.program}.py"
    path.write_text(mistake.text)
    assert not run(path, mistake.configuration).ok
    wraps = ["guard", "guard_step"] if mistake.remedy == "source" else [mistake.remedy]
    for wrap in wraps:
        guarded = run(path, mistake.configuration, wrap)
        assert guarded.ok == (wrap == mistake.remedy), (wrap, guarded.error)
