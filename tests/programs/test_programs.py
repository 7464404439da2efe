"""Whole programs, bare and guarded: what works goes on working, what fails is explained."""

import harness
import pytest
from harness import (
    AS_THEY_ARE,
    OUTSIDE_OF_JIT,
    differences,
    guarded_outside,
    run,
    run_once,
    written,
)
from mistakes import MISTAKES

pytestmark = pytest.mark.third_party


def xfail(reason):
    mark = pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)
    return [mark] if reason else []


LONG = pytest.mark.exhaustive
# bfloat16 is where most types drift. What x64 changes is the optimizer's affair, not that
# of the framework around it.
IN_X64 = "haiku_rnn", "optax_wrappers", "mixed_precision"
FIRST = {each.program: each for each in reversed(MISTAKES)}.values()
# They take the longest to compile; the same mistakes are mended in other programs.
MENDED_LONG = "linen_lm", "dqn", "equinox_mnist"


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


@pytest.mark.parametrize("program", OUTSIDE_OF_JIT)
def test_both_guards_and_that_of_the_step_outside_of_jit(program, tmp_path):
    path = guarded_outside(program, tmp_path)
    assert path.read_text() != (harness.HERE / path.name).read_text()
    guarded = run(path, "bfloat16", "both")
    assert not guarded.differs_from(run_once(program, "bfloat16", "bare")), guarded.error


@pytest.fixture(scope="session")
def told(tmp_path_factory):
    """What is said of a mistake, asked once for all tests of a process."""
    known = {}

    def tell(mistake):
        if mistake.id not in known:
            folder = tmp_path_factory.mktemp("told")
            known[mistake.id] = harness.told(mistake, folder)
        return known[mistake.id]

    return tell


def is_mended(mistake, said, folder):
    """A mistake fails or drifts, and goes away with the fix, and with the remedy alone."""
    assert not said.run.ok
    fixed = run(written(mistake, folder, is_fixed=True), mistake.configuration)
    assert fixed.ok, (fixed.error, fixed.drifts)
    wraps = ["guard", "guard_step"] if mistake.remedy == "source" else [mistake.remedy]
    for wrap in wraps:
        if (
            mistake.fix or f"dtypeguard.{wrap}(" not in mistake.advice
        ):  # else it has just run
            guarded = run(said.path, mistake.configuration, wrap)
            assert guarded.ok == (wrap == mistake.remedy), (wrap, guarded.error)


def is_advised(mistake, said, folder):
    """What is printed is what the fix does."""
    assert mistake.advice in said.text, said.text


def is_named(mistake, said, folder):
    """For every leaf that drifts the line at fault is named."""
    assert said.is_named, said.text


@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        pytest.param(
            mistake,
            check,
            marks=xfail(reason)
            + [LONG]
            * (
                mistake not in FIRST
                or (check is is_mended and mistake.program in MENDED_LONG)
            ),
            id=f"{mistake.id}-{check.__name__}",
        )
        for mistake in MISTAKES
        for check, reason in (
            (is_mended, ""),
            (is_advised, mistake.not_advised),
            (is_named, mistake.not_named),
        )
        if mistake.is_planted or check is not is_named
    ],
)
def test_a_mistake(mistake, check, told, tmp_path):
    check(mistake, told(mistake), tmp_path)
