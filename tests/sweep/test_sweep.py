"""Each check of the sweep finds its own kind of fault, and agrees with JAX."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest
from helpers import needs_explicit_x64
from jax import lax, tree_util
from optimizer_sweep import catalog
from optimizer_sweep.report import Report
from optimizer_sweep.sweep import CHECKS, NAMES, examine, in_order, sweep

from dtypeguard._testing.inputs import CONFIGURATIONS, Entry

BF16 = CONFIGURATIONS[0]
BY_NAME = {(c.name, c.x64): c for c in CONFIGURATIONS}


def _without_trial(entry, extra_names):
    """With its extra args known, an entry need not run in float32 to be swept."""
    vars(entry)["extra_names"] = extra_names
    return entry


def _counting():
    """An optimizer whose counter becomes a float, which no guard can cast back."""
    return optax.GradientTransformation(
        lambda params: jnp.zeros([], jnp.int32), lambda u, count, p=None: (u, count + 1.5)
    )


def test_multi_steps_is_skipped_where_it_does_not_take_the_state(monkeypatch):
    class NoBools(optax.MultiSteps):  # as that of Optax 0.1.9
        def update(self, updates, state, params=None, **extra_args):
            if any(leaf.dtype == bool for leaf in tree_util.tree_leaves(state)):
                raise TypeError("true_fun and false_fun output must have identical types")
            return super().update(updates, state, params, **extra_args)

    monkeypatch.setattr(optax, "MultiSteps", NoBools)
    for guarded in (False, True):
        outcome = examine(catalog.find("optax.zero_nans"), BF16, guarded)
        assert outcome.skipped == {
            "MultiSteps": "MultiSteps itself does not take these dtypes"
        }
        assert examine(catalog.find("optax.sgd"), BF16, guarded).skipped == {}


def test_known_drifts():
    failed = {
        (o.configuration, o.x64): o.failures
        for some in sweep([catalog.find("optax.adam")], 1)
        for o in some
        if not o.guarded
    }
    drift = failed["bf16/f32", False]
    assert drift["eval_shape"].startswith("state[0].mu['b']: bfloat16 -> float32")
    assert re.search(r"carry\.state\[0\]\.mu\['b'\] has type bfloat16", drift["scan"])
    assert {name for name, failures in failed.items() if failures} == {
        ("bf16/f32", False),
        ("bf16/f32", True),
        ("f32/f64", True),
    } | ({("f32/f64 allow", False), ("bf16/f32 error", False)} & set(failed))


@needs_explicit_x64
def test_64_bits_asked_for_by_name():
    """Explicit 64-bit arrays follow the flag, which is restored."""

    def make():
        zeros = lambda params: tree_util.tree_map(
            lambda p: jnp.zeros(3, jnp.float64), params
        )
        return optax.GradientTransformation(zeros, lambda u, s, p=None: (u, s))

    entry = _without_trial(Entry("planted", make), ())
    found = {
        name: examine(entry, BY_NAME[name, False], guarded=True).failures
        for name in ("f64 allow", "bf16/f32 error")
    }
    assert found["f64 allow"] == {}
    assert set(found["bf16/f32 error"]) == set(NAMES)
    assert "float64" in found["bf16/f32 error"]["scan"]
    with pytest.warns(UserWarning, match="float64"):
        assert jnp.zeros(3, jnp.float64).dtype == jnp.float32
    with BY_NAME["f64 allow", False].flags():
        inputs = catalog.find("optax.adam").inputs(jnp.float64, jnp.float64)
        assert {leaf.dtype for leaf in tree_util.tree_leaves(inputs)} == {
            jnp.dtype("float64")
        }


@pytest.mark.third_party
@pytest.mark.parametrize(
    ("entry_id", "configuration"),
    [
        ("optax.adam", "f32"),
        ("optax.adam", "bf16/f32"),
        ("optax.scale_by_distance_over_gradients", "f32"),
        ("optax.scale_by_backtracking_linesearch", "f32"),
    ],
)
def test_the_verdicts_are_those_of_a_real_run(entry_id, configuration):
    try:
        entry = catalog.find(entry_id)
    except KeyError:
        pytest.skip("not in this Optax")
    configuration = BY_NAME[configuration, False]
    failures = examine(entry, configuration, guarded=False).failures
    params, grads, extra_args = entry.inputs(configuration.params, configuration.grads)
    opt = optax.with_extra_args_support(entry.build())
    traces = []

    def step(params, state):
        traces.append(None)
        updates, state = opt.update(grads, state, params, **extra_args)
        return optax.apply_updates(params, updates), state

    jitted = jax.jit(step)
    carry = params, opt.init(params)
    for _ in range(3):
        carry = jitted(*carry)
    assert ("compilations" in failures) == (len(traces) > 1)
    scan = lambda: lax.scan(
        lambda carry, _: (step(*carry), None), (params, opt.init(params)), None, 2
    )
    if "scan" in failures:
        with pytest.raises(TypeError, match="carry"):
            scan()
    else:
        scan()


def test_two_processes_find_what_one_does_and_the_table_counts_it():
    chosen = [catalog.find("optax.sgd"), catalog.find("optax.ema")]
    alone, together = (
        in_order(o for some in sweep(chosen, jobs) for o in some) for jobs in (1, 2)
    )
    assert alone == together
    assert len(alone) == 2 * len(CONFIGURATIONS) * 2
    report = Report(alone, [catalog.Unbuilt("optax.odd", "it is odd")], 1.0)
    drifts = sum(bool(o.failures) for o in alone if not o.guarded)
    assert (report.bare_failed, report.guarded_failed) == (drifts, 0)
    text = str(report)
    assert re.search(r"^optax\.sgd +[1-9]\d* +0 +0  ", text, re.M)
    assert "optax.odd: it is odd" in text
    failing = examine(_without_trial(Entry("planted", _counting), ()), BF16, guarded=True)
    assert {*failing.failures} == {*CHECKS}
    assert "planted  bf16, x64 off  eval_shape: Dtype" in str(Report([failing], [], 1.0))
