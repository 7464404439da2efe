"""What the documentation promises, where it did not hold once."""

import functools
import gc
import json
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from helpers import (
    assert_same,
    child_variables,
    need,
    needs_x64_scope,
    set_x64,
    types,
)
from jax import lax, tree_util

import dtypeguard
from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, audit, guard
from dtypeguard._guard import strong
from dtypeguard._sweep.hlo import count_float64

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32
PARAMS = {"w": jnp.ones(3, F32)}
POLICIES = [
    Policy(),
    Policy(compute_dtype=F32),
    Policy(compute_dtype=F32, state_dtype=BF16, rounding="stochastic"),
]


def transformation(update, init=lambda params: ()):
    return optax.GradientTransformationExtraArgs(init, update)


def keep(updates, state, params=None, **extra_args):
    return updates, state


# Shapes of other gradients --------------------------------------------------------------


def test_the_audit_looks_at_the_leafs_own_gradient():
    params = {"w": jnp.ones(3), "b": jnp.ones((5, 3))}
    swap = transformation(lambda u, s, p=None: (u | {"w": u["b"]}, s))
    (drift,) = audit(swap, params).drifts
    assert (drift.path, drift.kind, drift.after) == ("['w']", "shape", "float32[5,3]")
    per_example = {"w": jnp.ones((7, 3)), "b": jnp.ones((7, 5, 3))}
    assert audit(transformation(keep), params, updates=per_example).ok


# What an optimizer holds ----------------------------------------------------------------


def make_rates():
    return jnp.linspace(0.1, 0.9, 9, dtype=F32)


@pytest.mark.parametrize("is_made_by_init", [False, True])
@pytest.mark.parametrize("alias", [lambda x: x, jax.device_put, lambda x: x.reshape(3, 3)])
def test_an_array_that_the_optimizer_holds_outlasts_a_donated_state(is_made_by_init, alias):
    held = functools.cache(make_rates)
    if not is_made_by_init:
        held()
    opt = guard(transformation(keep, lambda params: {"a": alias(held()), "b": held()}))
    step = jax.jit(lambda state: opt.update(PARAMS, state)[1], donate_argnums=0)
    for _ in range(2):
        assert_same(step(opt.init(PARAMS)), {"a": alias(make_rates()), "b": make_rates()})
    assert_same(held(), make_rates())


def test_an_array_inside_a_held_container_outlasts_a_donated_state():
    held = {"a": [make_rates()]}
    opt = guard(transformation(keep, lambda params: held))
    jax.jit(lambda state: opt.update(PARAMS, state)[1], donate_argnums=0)(opt.init(PARAMS))
    assert_same(held, {"a": [make_rates()]})


def test_a_first_state_is_copied_leaf_by_leaf_and_nothing_stays(monkeypatch):
    params = {str(n): jnp.ones(1000) for n in range(8)}
    opt = optax.adam(1e-3)
    alive = lambda: sum(array.nbytes for array in jax.live_arrays())
    gc.collect()
    before, peaks = alive(), []
    copied = strong._copied

    def watched(leaf):
        copy = copied(leaf)
        peaks.append(alive() - before)
        return copy

    monkeypatch.setattr(strong, "_copied", watched)
    state = guard(opt).init(params)
    size = sum(leaf.nbytes for leaf in tree_util.tree_leaves(state))
    assert len(peaks) == len(tree_util.tree_leaves(state))
    assert alive() - before == size
    assert max(peaks) <= size + 4000


def test_a_copy_stays_in_the_memory_of_the_host():
    (device, *_) = jax.devices()
    kinds = [memory.kind for memory in device.addressable_memories()]
    for memory_kind in kinds:
        try:
            sharding = jax.sharding.SingleDeviceSharding(device, memory_kind=memory_kind)
        except ValueError:  # JAX 0.4 names memory that it cannot address
            continue
        held = jax.device_put(make_rates(), sharding)
        state = guard(transformation(keep, lambda params, held=held: held)).init(PARAMS)
        assert state.sharding == held.sharding


# Python numbers in the state ------------------------------------------------------------


@needs_x64_scope
@pytest.mark.third_party
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_python_number_in_the_state_is_a_scalar_under_jit(policy):
    opt = guard(optax.inject_hyperparams(optax.adam)(1e-3), policy=policy)

    def at(rate, state):
        inner = (
            getattr(state, "inner_state", None) if policy.rounding != "nearest" else state
        )
        inner.hyperparams["learning_rate"] = rate
        return state

    # The types that follow do not depend on who traces, and nothing is in 64 bits.
    state = opt.init(PARAMS)
    expected = opt.update(PARAMS, at(F32(0.1), opt.init(PARAMS)), PARAMS)
    with set_x64(True):
        state = at(0.1, opt.init(PARAMS))
        eager = opt.update(PARAMS, state, PARAMS)
        jitted = jax.jit(opt.update)(PARAMS, state, PARAMS)
        assert types(eager) == types(jitted) == types(expected)
        assert count_float64(lambda u, s: opt.update(u, s, u), PARAMS, jitted[1]) == 0
        body = lambda state, _: (opt.update(PARAMS, state, PARAMS)[1], None)
        assert types(lax.scan(body, state, None, length=2)[0]) == types(expected[1])
    tree_util.tree_map(
        lambda a, b: float(jnp.max(jnp.abs(a - b))) < 1e-6 or pytest.fail(f"{a} {b}"),
        jitted[0],
        expected[0],
    )


@needs_x64_scope
def test_a_count_that_is_set_back_under_jit():
    seen = []

    def update(updates, state, params=None):
        seen.append(jax.config.jax_enable_x64)
        return updates, state + 1

    opt = guard(transformation(update))
    with set_x64(True):
        state = jax.jit(lambda updates: opt.update(updates, jnp.asarray(0))[1])(PARAMS)
        assert types(state) == ("int32", False, ())
        # One that is known to need 64 bits has them.
        _, state = opt.update(PARAMS, jnp.asarray(2**40))
        assert state == 2**40 + 1
    assert seen == [False, True]


@needs_x64_scope
def test_weak_arrays_and_weak_params_are_no_scalars_of_the_state():
    seen = []

    def update(updates, state, params=None):
        seen.append(jax.config.jax_enable_x64)
        return updates, state

    opt = guard(transformation(update))
    with set_x64(True):
        wide = {"w": jnp.asarray(0.5)}
        updates, _ = opt.update(wide, (), wide)
        assert updates["w"].dtype == jnp.float64
        _, state = opt.update(PARAMS, jnp.full(3, 0.5))
        assert state.dtype == jnp.float64
    assert seen == [True, True]


# Whole models and values ----------------------------------------------------------------


def whole_model():
    model = eqx.nn.MLP(2, 1, 4, 1, dtype=BF16, key=jax.random.key(0))
    params = eqx.filter(model, eqx.is_inexact_array)
    grads = tree_util.tree_map(jnp.ones_like, params)
    return model, params, grads


# Optax 0.2.3 on JAX 0.4.31
@pytest.mark.filterwarnings("ignore:In a future release of JAX, flatten-up-to")
@pytest.mark.third_party
@pytest.mark.parametrize(
    "policy", [*POLICIES, Policy(state_dtype=BF16), Policy(state_dtype="params")], ids=str
)
def test_a_whole_equinox_model_as_params(policy):
    model, params, grads = whole_model()
    opt = guard(optax.adamw(1e-3), policy=policy)
    state = opt.init(params)
    expected, expected_state = opt.update(grads, state, params)
    updates, new_state = opt.update(grads, state, model)
    assert_same(updates, expected)
    assert_same(new_state, expected_state)


@pytest.mark.third_party
def test_a_whole_equinox_model_in_a_second_attempt():
    def update(updates, state, params=None):
        lax.fori_loop(0, 2, lambda _, x: x * F32(0.5), tree_util.tree_leaves(state)[0])
        return updates, state

    model, params, grads = whole_model()
    init = lambda params: tree_util.tree_map(jnp.zeros_like, params)
    opt = guard(transformation(update, init))
    state = opt.init(params)
    with pytest.warns(DtypeGuardWarning, match="was run in float32 instead"):
        updates, new_state = opt.update(grads, state, model)
    assert types(new_state) == types(state)
    assert types(tree_util.tree_leaves(updates)) == types(tree_util.tree_leaves(params))


def by_value(params):
    """An init that looks at values: a bias correction where there is something to see."""
    if not bool(jnp.any(params["w"] != 0)):
        return {"sum": jnp.zeros(3, F32), "own": jnp.zeros(3, BF16)}
    zeros = jnp.zeros_like(params["w"])
    return {"sum": zeros, "own": jnp.zeros(3, F32)}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize(
    ("policy", "stored"),
    [
        (Policy(compute_dtype=F32), F32),
        (Policy(compute_dtype=F32, state_dtype=BF16), BF16),
        (Policy(compute_dtype=F32, state_dtype="params"), BF16),
        (Policy(state_dtype=BF16, rounding="stochastic"), BF16),
        (Policy(rounding="stochastic"), BF16),
    ],
    ids=str,
)
def test_a_policy_around_an_init_that_looks_at_values(policy, stored, jitted):
    seen = []

    def update(updates, state, params=None):
        seen.append(state["sum"].dtype)
        add = lambda s, u: s + u.astype(s.dtype)
        return updates, state | {"sum": add(state["sum"], updates["w"])}

    params = {"w": jnp.ones(3, BF16)}
    opt = guard(transformation(update, by_value), policy=policy)
    state = opt.init(params)
    inner = getattr(state, "inner_state", state)
    assert (inner["sum"].dtype, inner["own"].dtype) == (stored, F32)
    update_fn = jax.jit(opt.update) if jitted else opt.update
    _, new_state = update_fn(params, state, params)
    assert types(new_state) == types(state)
    assert seen == [F32]
    assert getattr(new_state, "inner_state", new_state)["sum"][0] == 1


# What is said ---------------------------------------------------------------------------


def test_a_bool_that_counts_is_told():
    count = transformation(
        lambda u, s, p=None: (u, s + 1), lambda params: jnp.asarray(False)
    )
    with jax.numpy_dtype_promotion("standard"):
        opt = guard(count, policy=Policy(on_drift="warn"))
        with pytest.warns(DtypeGuardWarning) as said:
            _, state = opt.update(PARAMS, opt.init(PARAMS))
        assert bool(state)
        opt = guard(count, policy=Policy(on_drift="error"))
        with pytest.raises(
            DtypeDriftError, match=r"bool.* -> int32.* holds no count"
        ) as error:
            opt.update(PARAMS, opt.init(PARAMS))
    line = next(line for line in str(said[0].message).splitlines() if "state" in line)
    assert line in str(error.value)
    assert "start from an int if it counts" in line
    # The remedy: it counts.
    ints = transformation(lambda u, s, p=None: (u, s + 1), lambda p: jnp.asarray(0, I32))
    opt = guard(ints, policy=Policy(on_drift="error"))
    _, state = opt.update(PARAMS, opt.init(PARAMS))
    assert opt.update(PARAMS, state)[1] == 2


@pytest.mark.third_party
def test_the_object_tells_whether_a_guarded_multi_steps_has_updated():
    multi = optax.MultiSteps(optax.adam(1e-3), 2)
    opt = guard(multi)
    state = opt.init(PARAMS)
    told = []
    for _ in range(4):
        _, state = opt.update(PARAMS, state, PARAMS)
        told.append(bool(multi.has_updated(state)))
    assert told == [False, True, False, True]


# Packages and types ---------------------------------------------------------------------


def test_importing_it_imports_no_equinox():
    program = (
        "import sys, dtypeguard, optax, jax.numpy as jnp\n"
        "params = {'w': jnp.ones(3, jnp.bfloat16)}\n"
        "opt = dtypeguard.guard(optax.adam(1e-3))\n"
        "opt.update(params, opt.init(params), params)\n"
        "dtypeguard.record(opt, params)\n"
        "assert 'equinox' not in sys.modules, 'equinox was imported'\n"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env=child_variables(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


TYPED = """
from typing import reveal_type
import optax
import dtypeguard
from dtypeguard import Policy, guard

def make(rate: float, *, b1: float = 0.9) -> optax.GradientTransformation: ...

reveal_type(guard(make))
reveal_type(guard(policy=Policy())(make))
reveal_type(guard(policy=Policy())(optax.adam(1e-3)))
reveal_type(guard(optax.adam(1e-3), policy=Policy()))
reveal_type(guard(optax.MultiSteps(optax.adam(1e-3), 2)))

@guard
def plain(rate: float, *, b1: float = 0.9) -> optax.GradientTransformation: ...

@guard(policy=Policy())
def decorated(rate: float, *, b1: float = 0.9) -> optax.GradientTransformation: ...

reveal_type(plain)
reveal_type(decorated)
"""


def test_a_type_checker_sees_the_signature(tmp_path):
    need("pyright")
    (tmp_path / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "pyright", "--outputjson"]
    command += ["--pythonpath", sys.executable, str(tmp_path / "typed.py")]
    run = subprocess.run(
        command, env=child_variables(), cwd=tmp_path, capture_output=True, text=True
    )
    found = json.loads(run.stdout)["generalDiagnostics"]
    revealed = [entry["message"].partition(" is ")[2] for entry in found]
    assert not [entry for entry in found if entry["severity"] == "error"], found
    factory = '"(rate: float, *, b1: float = 0.9) -> GradientTransformationExtraArgs"'
    made = '"GradientTransformationExtraArgs"'
    assert revealed == [factory, factory, made, made, made, factory, factory]
    assert dtypeguard.guard is guard
