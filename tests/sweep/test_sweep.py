"""The sweep misses no optimizer, and each of its checks fails where it should."""

import inspect
import operator

import jax.numpy as jnp
import optax
import optax.contrib
from optimizer_sweep import catalog
from optimizer_sweep.report import report
from optimizer_sweep.sweep import CHECKS, examine

import dtypeguard
from dtypeguard._sweep.inputs import CONFIGURATIONS, Entry


def factory(entry_id):
    root, _, names = entry_id.partition("[")[0].partition(".")
    return operator.attrgetter(names)({"optax": optax, "dtypeguard": dtypeguard}[root])


def annotated_factories():
    for module in (optax, optax.contrib):
        for name, member in vars(module).items():
            if name.startswith("_") or inspect.isclass(member) or not callable(member):
                continue
            try:
                annotation = str(inspect.signature(member).return_annotation)
            except ValueError:
                continue
            if "GradientTransformation" in annotation:
                yield f"{module.__name__}.{name}", member


def test_every_factory_of_optax_is_in_the_catalogue_or_left_out():
    found = [entry.id for part in catalog.entries() for entry in part]
    known = {id(factory(entry_id)) for entry_id in found}
    promised = dict(annotated_factories())
    assert len(promised) > 50
    assert [name for name, made in promised.items() if id(made) not in known] == []
    # Of these no annotation tells.
    assert {*found} >= {"optax.MultiSteps", "optax.scale_by_factored_rms"}


def test_what_no_guard_casts_back_fails_every_check():
    init = lambda params: jnp.zeros([], jnp.int32)
    make = lambda: optax.GradientTransformation(init, lambda u, n, p=None: (u, n + 1.5))
    entry = Entry("planted", make)
    vars(entry)["extra_names"] = ()  # else it has to run in float32
    failing = examine(entry, CONFIGURATIONS[0], guarded=True)
    assert {*failing.failures} == {*CHECKS}
    assert "planted  bf16, x64 off  eval_shape: Dtype" in report([failing], [], 1.0)
