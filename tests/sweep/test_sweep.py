"""Each check of the sweep fails where it should."""

import jax.numpy as jnp
import optax

from tests.support.optimizer_sweep.catalog import CONFIGURATIONS, Entry
from tests.support.optimizer_sweep.report import report
from tests.support.optimizer_sweep.sweep import CHECKS, examine


def test_what_no_guard_casts_back_fails_every_check():
    init = lambda params: jnp.zeros([], jnp.int32)
    make = lambda: optax.GradientTransformation(init, lambda u, n, p=None: (u, n + 1.5))
    entry = Entry("planted", make)
    vars(entry)["extra_names"] = ()  # else it has to run in float32
    failing = examine(entry, CONFIGURATIONS[0], guarded=True)
    assert {*failing.failures} == {*CHECKS}
    assert "planted  bf16, x64 off  eval_shape: Dtype" in report([failing], [], 1.0)
