"""Each check of the sweep finds its own kind of fault, and agrees with JAX."""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import needs_explicit_x64
from jax import lax, tree_util
from optimizer_sweep import catalog
from optimizer_sweep.report import Report
from optimizer_sweep.sweep import CHECKS, NAMES, examine, in_order, sweep

from dtypeguard._testing.configurations import CONFIGURATIONS
from dtypeguard._testing.entry import Entry

BF16 = CONFIGURATIONS[0]
BY_NAME = {(c.name, c.x64): c for c in CONFIGURATIONS}


class _State(NamedTuple):
    leaf: Any


def _planted(leaf, change, *, out=lambda updates, params: updates, of_params=None):
    """An optimizer with one leaf of state, and a fault."""
    first = of_params or (lambda params: leaf())

    def make():
        return optax.GradientTransformation(
            lambda params: _State(first(params)),
            lambda updates, state, params=None: (
                out(updates, params),
                _State(change(state.leaf)),
            ),
        )

    return _without_trial(Entry("planted", make), ())


def _without_trial(entry, extra_names):
    """With its extra args known, an entry need not run in float32 to be swept."""
    vars(entry)["extra_names"] = extra_names
    return entry


def _counter():
    return jnp.zeros([], jnp.int32)


def _increment(count):
    return count + 1


def _wide(updates, params):
    return tree_util.tree_map(lambda u: u.astype(jnp.float32), updates)


def _no_step_in_scan(leaf):
    return jnp.concatenate([leaf, leaf])


def _no_copy_of_zeros(params):
    is_set = jnp.any(params["b"])  # as of Prodigy, whose authors keep a single zero
    saves = not isinstance(is_set, jax.core.Tracer) and not is_set
    return jnp.zeros(()) if saves else jnp.array(params["b"], copy=True)


def _weak_if_traced(params):
    return jnp.asarray(0 if isinstance(params["b"], jax.core.Tracer) else np.int32(0))


def _raise(leaf):
    raise TypeError("the inner update is wrong\nfor a long reason")


# The fault, the checks that must fail, and how the reason of the first begins.
FAULTS = {
    "none": (_planted(_counter, _increment), set(), None),
    "wide update": (
        _planted(_counter, _increment, out=_wide),
        {"eval_shape", "MultiSteps"},
        "updates['b']: float32 for a bfloat16 param (and 1 more)",
    ),
    "state dtype": (
        _planted(_counter, lambda count: count + 1.5),
        {"eval_shape", "scan", "cond", "compilations"},
        "state.leaf: int32 -> float32",
    ),
    "state weak type": (
        _planted(lambda: jnp.asarray(0), lambda count: count + jnp.int32(1)),
        {"eval_shape", "MultiSteps", "compilations"},
        "state.leaf: int32 (weak) -> int32",
    ),
    "state shape": (
        _planted(lambda: jnp.zeros(1), _no_step_in_scan),
        {"eval_shape", "scan", "cond", "MultiSteps", "compilations"},
        "state.leaf: float32 of shape (1,) -> float32 of shape (2,)",
    ),
    "state tree": (
        _planted(lambda: (), lambda leaf: (jnp.zeros(()),)),
        set(CHECKS),
        "state: another tree, 0 -> 1 leaves",
    ),
    "state by the values of the params": (
        _planted(None, lambda leaf: leaf, of_params=_no_copy_of_zeros),
        {"init"},
        "state.leaf: float32 of shape () -> bfloat16 of shape (3,) where init is traced",
    ),
    "state by who calls": (
        _planted(None, lambda leaf: leaf, of_params=_weak_if_traced),
        {"init"},
        "state.leaf: int32 -> int32 (weak) where init is traced",
    ),
    "raises": (
        _planted(_counter, _raise),
        set(CHECKS),
        "TypeError: the inner update is wrong",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_fails_its_checks(name):
    entry, checks, reason = FAULTS[name]
    outcome = examine(entry, BF16, guarded=False)
    # Some releases of MultiSteps cast a drifting state back, and some do not.
    others = set(outcome.failures) - ({"MultiSteps"} if checks else set())
    assert others | ({"MultiSteps"} & checks) == checks
    assert ("MultiSteps" in checks) <= ("MultiSteps" in outcome.failures)
    assert outcome.skipped == {}
    if reason is not None:
        first = next(check for check in NAMES if check in checks)
        assert outcome.failures[first].startswith(reason)


@pytest.mark.parametrize("name", ["wide update", "state weak type"])
def test_the_guard_removes_what_it_promises_to(name):
    assert examine(FAULTS[name][0], BF16, guarded=True).failures == {}


def test_a_fault_the_guard_cannot_cure_fails_guarded():
    outcome = examine(FAULTS["state dtype"][0], BF16, guarded=True)
    assert set(outcome.failures) == set(CHECKS)
    assert outcome.failures["eval_shape"].startswith("DtypeDriftError: ")
    assert "state.leaf" in outcome.failures["eval_shape"]


def test_a_failing_init_fails_every_check():
    entry = _planted(lambda: jnp.zeros(2) + jnp.zeros(3), _increment)
    outcome = examine(entry, BF16, guarded=False)
    assert set(outcome.failures) == set(NAMES)
    assert outcome.failures["scan"].startswith("init: ")


def test_rescues_are_counted_and_swallowed():
    opt = catalog.find("optax.apply_if_finite")
    outcome = examine(opt, BY_NAME["bf16/f32", False], guarded=True)
    assert (outcome.rescues > 0, outcome.failures) == (True, {})
    assert examine(opt, BY_NAME["f32", False], guarded=True).rescues == 0


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
    failing = examine(FAULTS["state dtype"][0], BF16, guarded=True)
    assert "planted  bf16, x64 off  eval_shape: Dtype" in str(Report([failing], [], 1.0))
