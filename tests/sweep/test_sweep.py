"""The sweep misses no optimizer, and each of its checks fails where it should."""

import types

import jax.numpy as jnp
import optax
import optax.contrib

from tests.support.optimizer_sweep import catalog
from tests.support.optimizer_sweep.catalog import CONFIGURATIONS, Entry
from tests.support.optimizer_sweep.report import report
from tests.support.optimizer_sweep.sweep import CHECKS, examine


def test_every_factory_of_optax_is_in_the_catalogue_or_left_out():
    ids = {entry.id.partition("[")[0] for part in catalog.entries() for entry in part}
    promised = {
        made.__name__
        for module in (optax, optax.contrib)
        for made in vars(module).values()
        if isinstance(made, types.FunctionType)
        and "GradientTransformation" in str(made.__annotations__.get("return"))
    }
    assert len(promised) > 50
    assert promised <= {name.rpartition(".")[2] for name in ids}
    # Of these no annotation tells.
    assert ids >= {"optax.MultiSteps", "optax.scale_by_factored_rms"}


def test_what_no_guard_casts_back_fails_every_check():
    init = lambda params: jnp.zeros([], jnp.int32)
    make = lambda: optax.GradientTransformation(init, lambda u, n, p=None: (u, n + 1.5))
    entry = Entry("planted", make)
    vars(entry)["extra_names"] = ()  # else it has to run in float32
    failing = examine(entry, CONFIGURATIONS[0], guarded=True)
    assert {*failing.failures} == {*CHECKS}
    assert "planted  bf16, x64 off  eval_shape: Dtype" in report([failing], [], 1.0)
