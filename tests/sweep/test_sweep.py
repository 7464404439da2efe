"""The sweep misses no optimizer, finds each kind of fault, and agrees with JAX."""

import inspect
import operator
import re

import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest
from jax import lax
from optimizer_sweep import catalog
from optimizer_sweep.report import report
from optimizer_sweep.sweep import CHECKS, examine

import dtypeguard
from dtypeguard._sweep.inputs import CONFIGURATIONS, Entry

BF16 = CONFIGURATIONS[0]
BY_NAME = {(c.name, c.x64): c for c in CONFIGURATIONS}


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


@pytest.mark.third_party
@pytest.mark.parametrize(
    ("entry_id", "configuration"),
    [
        ("optax.adam", "f32"),
        ("optax.adam", "bf16/f32"),
        ("optax.scale_by_backtracking_linesearch", "f32"),
    ],
)
def test_the_verdicts_are_those_of_a_real_run(entry_id, configuration):
    entry, configuration = catalog.by_id()[entry_id], BY_NAME[configuration, False]
    failures = examine(entry, configuration, guarded=False).failures
    params, grads, extra_args = entry.inputs(configuration.params, configuration.grads)
    opt = optax.with_extra_args_support(entry.build())
    traces = []

    def step(carry, _=None):
        traces.append(None)
        updates, state = opt.update(grads, carry[1], carry[0], **extra_args)
        return (optax.apply_updates(carry[0], updates), state), None

    jitted, carry = jax.jit(step), (params, opt.init(params))
    for _ in range(3):
        carry, _ = jitted(carry)
    assert ("compilations" in failures) == (len(traces) > 1)
    scan = lambda: lax.scan(step, (params, opt.init(params)), None, 2)
    if "scan" in failures:
        assert re.search(r"carry\.state.* has type", failures["scan"])
        with pytest.raises(TypeError, match="carry"):
            scan()
    else:
        scan()


def test_what_no_guard_casts_back_fails_every_check():
    init = lambda params: jnp.zeros([], jnp.int32)
    make = lambda: optax.GradientTransformation(init, lambda u, n, p=None: (u, n + 1.5))
    entry = Entry("planted", make)
    vars(entry)["extra_names"] = ()  # else it has to run in float32
    failing = examine(entry, BF16, guarded=True)
    assert {*failing.failures} == {*CHECKS}
    assert "planted  bf16, x64 off  eval_shape: Dtype" in report([failing], [], 1.0)
