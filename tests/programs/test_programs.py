"""Whole programs, bare and guarded: what works goes on working, what fails is mended."""

import runpy
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from harness import CONFIGURATIONS, HERE, MISTAKES
from jax import tree_util

import dtypeguard
from tests.support.helpers import set_x64, types

pytestmark = pytest.mark.third_party

# In bfloat16 most types drift: all programs run in it, a few of them with a mistake, and
# the rest with `-m exhaustive`. In float32 a guarded program is the bare one.
PROGRAMS = sorted({mistake.program for mistake in MISTAKES})
SOME = "equinox_rnn", "mixed_precision", "nnx_classifier"
FIRST = {each.program: each for each in reversed(MISTAKES)}.values()
SAME = lambda function, **_: function
WRAPS = {
    "bare": (SAME, SAME),
    "guard": (dtypeguard.guard, SAME),
    "guard_step": (SAME, dtypeguard.guard_step),
}


class Run(NamedTuple):
    """What came of a program: its losses, the types of its last carry, what it drifted."""

    losses: list[float]
    last: dict[str, Any]
    drifts: dict[str, Any]
    traces: int
    warned: int
    error: Exception | None = None

    @property
    def ok(self):
        return self.error is None and not self.drifts


def run(program, configuration, wrap="bare", mistake=""):
    """Runs a program; any warning that is not dtypeguard's is an error."""
    (dtype, x64), (opt, step) = CONFIGURATIONS[configuration], WRAPS[wrap]
    train = runpy.run_path(str(HERE / f"{program}.py"), run_name=program)["train"]
    # Threefry is a long program, and these of a few steps mostly compile.
    random = jax.default_prng_impl("rbg")
    with set_x64(x64), random, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("error")
        warnings.simplefilter("always", dtypeguard.DtypeGuardWarning)
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation")
        try:
            losses, first, last, traces = train(dtype, opt, step, mistake)
        except (TypeError, ValueError) as error:
            return Run([], {}, {}, 0, 0, error)
    before, after = by_path(first), by_path(last)
    drifts = {
        path: after.get(path)
        for path, (dtype, is_weak, _) in before.items()
        if not is_weak and after.get(path, [""])[0] != dtype
    }
    last = {path: (dtype, shape) for path, (dtype, _, shape) in after.items()}
    return Run(losses, last, drifts, traces, len(warned))


def by_path(tree):
    """Dtype, weak type and shape of every array and number."""
    leaves = tree_util.tree_flatten_with_path(tree)[0]
    is_data = lambda leaf: isinstance(leaf, (int, float)) or hasattr(leaf, "shape")
    return {tree_util.keystr(path): types(leaf) for path, leaf in leaves if is_data(leaf)}


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
    bare = run(program, configuration)
    assert bare.ok, (bare.error, bare.drifts)
    for wrap in ("guard", "guard_step"):
        guarded = run(program, configuration, wrap)
        assert guarded.ok, (wrap, guarded.error, guarded.drifts)
        assert (guarded.last, guarded.warned) == (bare.last, 0)
        assert guarded.traces <= bare.traces
        # Optax computes some scalars in float64 there, and a guarded optimizer none.
        rtol = 1e-3 if (configuration, wrap) == ("x64", "guard") else 0
        np.testing.assert_allclose(guarded.losses, bare.losses, rtol, 0)


@pytest.mark.parametrize(
    "mistake",
    [
        marked(m not in FIRST or m.program not in SOME, m, id=f"{m.program}-{m.name}")
        for m in MISTAKES
    ],
)
def test_a_mistake_is_mended(mistake):
    """By a guard, or by none where the source has to change; `notes.py` has the notes."""
    program = mistake.program, mistake.configuration
    assert not run(*program, mistake=mistake.name).ok
    wraps = ["guard", "guard_step"] if mistake.remedy == "source" else [mistake.remedy]
    for wrap in wraps:
        guarded = run(*program, wrap, mistake.name)
        assert guarded.ok == (wrap == mistake.remedy), (wrap, guarded.error)
