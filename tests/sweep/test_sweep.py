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

from dtypeguard._leaves.compat import HAS_EXPLICIT_X64
from dtypeguard._sweep import catalog
from dtypeguard._sweep.checks import CHECKS, NAMES
from dtypeguard._sweep.entry import Entry
from dtypeguard._sweep.passed import Passed
from dtypeguard._sweep.sweep import CONFIGURATIONS, examine, sweep, sweep_entry

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


def test_every_check_fails_for_some_fault():
    assert set().union(*(checks for _, checks, _ in FAULTS.values())) == set(NAMES)


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


def test_multi_steps_is_skipped_where_it_cannot_be_put_around():
    outcome = examine(catalog.find("optax.lookahead"), BF16, guarded=False)
    assert outcome.skipped == {
        "MultiSteps": "MultiSteps accumulates gradients in the shapes of the params"
    }


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


def test_extra_args_reach_the_optimizer_inside_multi_steps():
    def update(updates, state, params=None, *, value, value_fn):
        seen.append((value.dtype, callable(value_fn)))
        return updates, state

    seen = []
    entry = Entry(
        "planted",
        lambda: optax.GradientTransformationExtraArgs(
            lambda params: optax.EmptyState(), update
        ),
    )
    entry = _without_trial(entry, ("value", "value_fn"))
    assert examine(entry, BF16, guarded=False).failures == {}
    assert set(seen) == {(jnp.dtype("bfloat16"), True)}


def test_the_configurations():
    names = {}
    for configuration in CONFIGURATIONS:
        key = configuration.x64, configuration.explicit
        names.setdefault(key, []).append(configuration.name)
    narrow = ["bf16", "f16", "f32", "mixed", "bf16/f32", "f32/bf16"]
    expected = {
        (False, "warn"): narrow,
        (True, "warn"): [*narrow, "f64", "f64/f32", "f32/f64"],
        (False, "allow"): ["f64 allow", "f32/f64 allow"],
        (False, "error"): ["bf16/f32 error"],
    }
    if not HAS_EXPLICIT_X64:
        del expected[False, "allow"], expected[False, "error"]
    assert names == expected
    mixed = catalog.find("optax.sgd").inputs(BY_NAME["mixed", False].params, "float32")
    assert len({leaf.dtype for leaf in tree_util.tree_leaves(mixed.params)}) == 2


def test_known_drifts():
    failed = {
        (o.configuration, o.x64): o.failures
        for o in sweep_entry(catalog.find("optax.adam"))
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


def test_two_processes_find_what_one_does():
    chosen = [catalog.find("optax.sgd"), catalog.find("optax.ema")]
    alone, together = (
        sorted((o for some in sweep(chosen, jobs) for o in some), key=repr)
        for jobs in (1, 2)
    )
    assert alone == together
    assert len(alone) == 2 * len(CONFIGURATIONS) * 2


def test_an_update_is_traced_once_and_inputs_are_made_once():
    """Every check reads one trace, and bare and guarded get the same inputs."""
    traces, losses = [], []

    class Counted(Entry):
        def loss(self, params):
            losses.append(1)
            return super().loss(params)

    def update(updates, state, params=None, *, value):
        traces.append(1)
        return updates, _State(state.leaf * jnp.float32(0.5))

    init = lambda params: _State(jnp.zeros((), jnp.float32))
    make = lambda: optax.GradientTransformationExtraArgs(init, update)
    entry = _without_trial(Counted("planted", make), ("value",))
    for guarded in (False, True):
        traces.clear()
        assert not examine(entry, BY_NAME["f32", False], guarded).failures
        assert len(traces) == 1
    assert len(losses) == 1


# A check that one update has passed, another one of its types passes, too -----------------


@pytest.fixture
def ran(monkeypatch):
    """The checks that run, in their order."""
    names = []
    for name, check in CHECKS.items():
        note = lambda subject, name=name, check=check: names.append(name) or check(subject)
        monkeypatch.setitem(CHECKS, name, note)
    return names


def test_a_check_runs_once_for_updates_of_the_same_types(ran):
    passed = Passed()
    for entry, guarded in ((FAULTS["none"][0], False), (FAULTS["none"][0], True)):
        assert not examine(entry, BF16, guarded, passed=passed).failures
    assert ran == [*CHECKS]
    assert not examine(
        FAULTS["none"][0], BY_NAME["bf16", True], True, passed=passed
    ).failures
    assert not examine(
        FAULTS["none"][0], BY_NAME["f32", False], True, passed=passed
    ).failures
    assert ran == [*CHECKS] * 3  # other flags and other types


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "none"])
def test_a_fault_fails_after_an_update_that_had_none(name):
    """The first state of some of these is that of the update that has passed."""
    passed = Passed()
    assert not examine(FAULTS["none"][0], BF16, False, passed=passed).failures
    alone = examine(FAULTS[name][0], BF16, False)
    for _ in range(2):
        assert examine(FAULTS[name][0], BF16, False, passed=passed) == alone


def test_an_effect_fails_where_its_types_have_passed(ran):
    def count_and_tell(count):
        jax.experimental.io_callback(lambda: None, None, ordered=True)
        return count + 1

    passed = Passed()
    assert not examine(_planted(_counter, _increment), BF16, False, passed=passed).failures
    examine(_planted(_counter, count_and_tell), BF16, False, passed=passed)
    assert ran == [*CHECKS] * 2


def test_a_check_that_traces_other_types_is_not_remembered(monkeypatch, ran):
    def wide(subject):
        ran.append("wide")
        params, state = subject.carry
        subject.update(_wide(subject.grads, params), state, params)

    monkeypatch.setitem(CHECKS, "wide", wide)
    passed = Passed()
    for _ in range(2):
        assert not examine(FAULTS["none"][0], BF16, False, passed=passed).failures
    assert [ran.count(name) for name in CHECKS] == [1, 1, 1, 1, 1, 2]


class _Pair(NamedTuple):
    count: Any
    mean: Any


def test_a_state_passes_once_its_leaves_have_passed(ran):
    """In whatever trees, and however often; a leaf that is new runs every check."""
    mean = lambda: jnp.zeros((), jnp.float32)
    half = lambda leaf: leaf * jnp.float32(0.5)
    both = _planted(
        lambda: _Pair(_counter(), mean()), lambda s: _Pair(s[0] + 1, half(s[1]))
    )
    others = [
        _planted(_counter, _increment),
        _planted(mean, half),
        _planted(lambda: [mean(), mean()], lambda leaves: [*map(half, leaves)]),
    ]
    passed = Passed()
    for entry in (both, *others):
        assert not examine(entry, BF16, False, passed=passed).failures
    assert ran == [*CHECKS]
    ran.clear()
    passed = Passed()
    for entry in (*others, both):
        assert not examine(entry, BF16, False, passed=passed).failures
    assert ran == [*CHECKS] * 2  # a counter, then a mean


def test_leaves_that_change_places_fail_where_each_type_has_passed():
    both = lambda: [_counter(), jnp.zeros((), jnp.float32)]
    passed = Passed()
    kept = _planted(both, lambda leaves: leaves)
    assert not examine(kept, BF16, False, passed=passed).failures
    turned = _planted(both, lambda leaves: leaves[::-1])
    failures = examine(turned, BF16, False, passed=passed).failures
    assert set(failures) >= set(CHECKS) - {"MultiSteps"}


def test_an_init_runs_once_for_the_configurations_that_share_its_state():
    runs = []

    def first(params):
        if not isinstance(params["b"], jax.core.Tracer):
            runs.append(params["b"].dtype)
        return jnp.zeros([], jnp.int32)

    entry = _planted(None, lambda leaf: leaf, of_params=first)
    outcomes = [o for some in sweep([entry], 1) for o in some]
    assert len(outcomes) == 2 * len(CONFIGURATIONS)
    assert len(runs) == 2 * len({c.of_init for c in CONFIGURATIONS})
