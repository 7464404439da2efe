"""Whole programs audited for precision: with all lines rounding, each is as written."""

import jax
import numpy as np
import pytest
from harness import HERE, PROGRAMS, first_call, quick_keys

import dtypeguard
from dtypeguard._leaves.compat import HAS_NUMBERS
from dtypeguard._numbers import plans
from dtypeguard._numbers.measure import Measures
from dtypeguard._numbers.run import Probes

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8"),
]


class Compared(Exception):
    """Both sides of the outputs: what is measured after that is not needed."""


# Every second one: each takes ten seconds, and `tests/numbers` has every primitive.
SOME = sorted({"mixed_precision", *sorted(PROGRAMS)[::2]})


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] * (name != "mixed_precision"))
        for name in SOME
    ],
)
def test_with_all_lines_rounding_a_step_is_as_written(program, monkeypatch):
    def compare(self, program, arrays):
        measured(self, program, arrays)
        assert self.total > 0
        plan = plans.rounding(program, range(self.lines))
        made = self.run(plan, Probes(given=self.decisions))
        raise Compared([*zip(self.written, made)])

    measured = Measures.__init__
    monkeypatch.setattr(Measures, "__init__", compare)
    path = HERE / f"{program}.py"
    step, args, kwargs, _ = first_call(path, "bfloat16", jax.disable_jit)
    with quick_keys(), pytest.raises(Compared) as compared:
        dtypeguard.audit_precision(step, *args, kwargs=kwargs)
    for written, rounded in compared.value.args[0]:
        np.testing.assert_array_equal(written.astype(rounded.dtype), rounded)
