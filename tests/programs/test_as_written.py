"""Whole programs audited for precision: with all lines rounding, each is as written."""

import jax
import numpy as np
import pytest
from harness import HERE, PROGRAMS, first_call, quick_keys

import dtypeguard
from dtypeguard._leaves.compat import HAS_BARRIER
from dtypeguard._paired.measure import Measures

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_BARRIER, reason="needs JAX >= 0.5"),
]


class Compared(Exception):
    """Both sides of the outputs: what is measured after that is not needed."""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] * (name != "mixed_precision"))
        for name in PROGRAMS
    ],
)
def test_with_all_lines_rounding_a_step_is_as_written(program, monkeypatch):
    def compare(self, paired, arrays):
        measured(self, paired, arrays)

        def both(amounts, arrays):
            values = [v for v in paired(amounts, arrays) if v.wide is not None]
            return [(v.narrow, v.wide) for v in values]

        lowered = jax.jit(both).lower(self._amounts(range(self.lines)), arrays)
        run = lowered.compile({"xla_backend_optimization_level": "0"})  # as the audit does
        assert self.total > 0
        raise Compared(run(self._amounts(range(self.lines)), arrays))

    measured = Measures.__init__
    monkeypatch.setattr(Measures, "__init__", compare)
    path = HERE / f"{program}.py"
    step, args, kwargs, _ = first_call(path, "bfloat16", jax.disable_jit)
    with quick_keys(), pytest.raises(Compared) as compared:
        dtypeguard.audit_precision(step, *args, kwargs=kwargs)
    for narrow, wide in compared.value.args[0]:
        # XLA may order float32 operations differently on the two sides.
        rtol = 1e-6 if narrow.dtype == wide.dtype else 0
        np.testing.assert_allclose(narrow.astype(wide.dtype), wide, rtol)
