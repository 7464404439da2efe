"""Roundings that no line shows: dtypeguard's own casts, lost updates, what came rounded."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from dtypeguard import Policy, apply_updates, audit_precision, guard, guard_step
from tests.support.dtypes import BF16, F16, F32
from tests.support.helpers import normal, off, users_programs

pytestmark = users_programs
IN_FLOAT32 = Policy(compute_dtype=F32)
X = normal(1, 16, 8, dtype=BF16)
PARAMS = {"w": normal(0, 8, 4, dtype=BF16)}


def grads_of(params):
    return jax.grad(lambda p: jnp.mean((X @ p["w"]) ** 2))(params)


def state_after(opt, steps=20):
    """A function that runs some updates of an optimizer on fixed params."""

    def run(params):
        def step(state, _):
            return opt.update(grads_of(params), state, params)[1], None

        return lax.scan(step, opt.init(params), None, steps)[0]

    return run


def trained(add, updates_dtype=None):
    """A function that trains some steps and adds the updates by `add`."""
    opt = guard(
        optax.adam(1e-3), policy=Policy(compute_dtype=F32, updates_dtype=updates_dtype)
    )

    def run(params):
        def step(carry, key):
            params, state = carry
            updates, state = opt.update(grads_of(params), state, params)
            return (add(params, updates, key), state), None

        return lax.scan(
            step, (params, opt.init(params)), jax.random.split(jax.random.key(0), 20)
        )[0][0]

    return run


def momentum():
    """A momentum that is computed in float32, and returned so."""

    def update(updates, state, params=None):
        add = lambda mu, g: 0.999 * mu.astype(F32) + g.astype(F32)
        state = jax.tree_util.tree_map(add, state, updates)
        return state, state

    return optax.GradientTransformation(
        lambda params: jax.tree_util.tree_map(jnp.zeros_like, params), update
    )


def test_a_guards_cast_of_a_state():
    report = audit_precision(state_after(guard(momentum()), 100), PARAMS)
    (loss,) = report.fix
    assert loss.cast == "guard's cast of state['w']"
    assert loss.place.endswith(f"test_casts.py:{loss.origin.line}, {loss.cast}")
    assert "opt.update(grads_of(params), state, params)" in loss.origin.code
    assert loss.place in str(report)
    assert "policy=dtypeguard.Policy(compute_dtype=jnp.float32)" in loss.remedy
    fixed = state_after(guard(momentum(), policy=IN_FLOAT32), 100)
    assert audit_precision(fixed, PARAMS, seconds=0).error < report.error / 5


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_policys_store(rounding):
    policy = Policy(compute_dtype=F32, state_dtype=BF16, rounding=rounding)
    report = audit_precision(state_after(guard(optax.trace(0.9), policy=policy)), PARAMS)
    assert report.fix[0].cast == "guard's cast of state.trace['w']"
    assert ("at random" in report.fix[0].remedy) is (rounding == "nearest")


def test_a_stochastic_sum_is_measured_and_its_remedy_helps():
    """Its bits hold no wide value, yet the params are not those of float32."""
    to_nearest = trained(lambda p, u, key: optax.apply_updates(p, u))
    bare = audit_precision(to_nearest, PARAMS)
    assert str(bare.fix[0].origin).startswith("optax/_src/update.py")
    assert "dtypeguard.apply_updates(params, updates, key=key)" in bare.fix[0].remedy
    at_random = trained(lambda p, u, key: apply_updates(p, u, key=key), F32)
    report = audit_precision(at_random, PARAMS)
    assert 0 < report.error < 0.6 * bare.error
    (loss,) = report.fix
    assert loss.cast == "apply_updates's cast of params['w']"
    assert loss.remedy.endswith("rounds: keep it in jnp.float32.")
    exact = to_nearest({"w": PARAMS["w"].astype(F32)})["w"]
    outputs = jax.jit(at_random)(PARAMS)["w"]
    assert report.error == pytest.approx(off(exact, outputs), rel=0.3)


def test_a_step_that_casts_its_average_back():
    @guard_step
    def step(mean, x):
        mean = {"m": mean["m"].astype(F32), "n": mean["n"]}
        return {"m": 0.999 * mean["m"] + 0.001 * x, "n": mean["n"] + 1}, None

    run = lambda mean, xs: lax.scan(step, mean, xs)[0]
    mean = {"m": jnp.ones(3, BF16), "n": jnp.zeros((), jnp.int32)}
    (loss,) = audit_precision(run, mean, jnp.zeros((500, 3))).fix
    assert loss.cast == "guard_step's cast of mean['m']"
    assert "keep it in jnp.float32, or let it round at random" in loss.remedy


def test_lines_inside_an_optimizer_have_a_policy_for_a_remedy():
    bare = audit_precision(state_after(optax.scale_by_adam(), 300), PARAMS)
    assert bare.fix[0].constant == "0.999 -> 1"
    assert "policy=dtypeguard.Policy(compute_dtype=jnp.float32))" in bare.fix[0].remedy
    guarded = guard(optax.scale_by_adam(), policy=IN_FLOAT32)
    report = audit_precision(state_after(guarded, 300), PARAMS, seconds=0)
    assert report.error < 0.2 * bare.error


def test_parts_of_a_tree_are_lines():
    params = {f"w{n:02}": jnp.ones(2, BF16) for n in range(40)}
    updates = {name: jnp.full(2, 1e-3) for name in params}
    report = audit_precision(lambda p: apply_updates(p, updates), params)
    named = {loss.cast for loss in report.losses}
    assert named == {f"apply_updates's cast of params[{name!r}]" for name in params}


OPT = optax.adam(1e-4)
A, BATCH = (normal(n, 16, 16, dtype=BF16) for n in range(2))
WEIGHTS = {"a": A / 4, "b": BATCH[0]}


def loss(params, x):
    return jnp.mean((jnp.tanh(x @ params["a"]) @ params["b"] - 1).astype(F32) ** 2)


def step(params, state, x, apply=optax.apply_updates):
    updates, state = OPT.update(jax.grad(loss)(params, x), state, params)
    return apply(params, updates), state


def in_a_scan(params, state, x):
    return lax.scan(lambda carry, x: (step(*carry, x), None), (params, state), x[None])[0]


@pytest.mark.parametrize("f", [jax.jit(step), in_a_scan])
def test_the_share_of_the_params_that_do_not_move(f):
    args = WEIGHTS, OPT.init(WEIGHTS), BATCH
    report, new = audit_precision(f, *args), f(*args)[0]
    for name in WEIGHTS:
        stays = np.mean(np.float32(new[name]) == np.float32(WEIGHTS[name]))
        assert report.outputs[f"[0]['{name}']"].unmoved == pytest.approx(stays, abs=0.02)
        assert stays > 0.5
    assert "Rounding takes the update away in" in str(report)
    assert "dtypeguard.apply_updates(params, updates, key=key)" in str(report)


def test_stochastic_rounding_and_wide_params_lose_none():
    apply = functools.partial(apply_updates, key=jax.random.PRNGKey(1))
    report = audit_precision(
        functools.partial(step, apply=apply), WEIGHTS, OPT.init(WEIGHTS), BATCH
    )
    assert "takes the update away" not in str(report)
    params = jax.tree_util.tree_map(lambda leaf: leaf.astype(F32), WEIGHTS)
    report = audit_precision(step, params, OPT.init(params), BATCH)
    assert max(x.unmoved or 0 for x in report.outputs.values()) < 0.01
    assert "takes the update away" not in str(report)


def test_an_update_is_lost_wherever_it_stands():
    step = lambda p, u, mask: jnp.where(mask, u + p, p)
    params = jnp.linspace(1, 2, 64).astype(BF16)
    report = audit_precision(step, params, jnp.full(64, 1e-4, BF16), jnp.ones(64, bool))
    assert report.outputs[""].unmoved == 1.0


FIRST, GRADS = jax.device_put(
    [{"w": np.linspace(start, 1, 8).astype(BF16)} for start in (0.5, -1)]
)
PARAM = FIRST["w"]


def test_a_hyperparameter_that_its_dtype_rounds_to_1_leads_the_report():
    opt = optax.inject_hyperparams(optax.adam)(1e-3)
    update = lambda grads, state: opt.update(grads, state)[0]
    said = re.escape("state.hyperparams['b2'] is 1 in bfloat16, to which 0.999 rounds. ")
    with pytest.raises(ValueError, match=f"{said}.*compute_dtype=jnp.float32.* Otherwise "):
        audit_precision(update, GRADS, opt.init(FIRST))
    guarded = guard(opt, policy=Policy(compute_dtype=F32))
    update = lambda grads, state: guarded.update(grads, state, FIRST)[0]
    report = audit_precision(update, GRADS, guarded.init(FIRST))
    assert np.isfinite(report.error)
    assert not report.rounded


def test_it_leads_where_the_outputs_are_finite_too():
    f = lambda decay, x: x / (1 + 1 / (1 - decay))
    report = audit_precision(f, jnp.asarray(0.999, BF16), PARAM)
    assert report.headline.startswith("decay is 1 in bfloat16, to which 0.999 rounds.")
    f = lambda eps, x: 1 / (1 + 1 / (x * 0 + eps))
    (row,) = audit_precision(f, jnp.asarray(1e-8, F16), PARAM.astype(F16)).rounded
    assert (row.value, row.meant) == (0, 1e-8)


def test_a_number_that_is_meant_to_be_0_or_1_is_none():
    f = lambda scale, x: jnp.log(x * scale)
    assert not audit_precision(f, jnp.asarray(1, BF16), PARAM).rounded


def test_a_constant_that_is_narrow_in_float32_as_well_is_named_with_its_half_unit():
    known = jnp.linspace(0.1, 0.9, 8).astype(BF16)  # weights that a closure holds

    def f(x):
        y = x * jnp.asarray(0.797, BF16) * jnp.asarray(0.75, BF16)
        return y * known

    report = audit_precision(f, PARAM)
    (row,) = report.unknown
    assert (row.value, row.within) == (float(BF16(0.797)), 2**-9)
    assert f"0.796875 (within 0.002, {row.origin.place})" in str(report).splitlines()[0]


def test_an_array_of_an_explicit_dtype_is_named():
    (row,) = audit_precision(lambda x: x * jnp.array([0.797] * 8, BF16), PARAM).unknown
    assert row.value == float(BF16(0.797))


def test_what_does_not_trace_with_float32_arguments_says_so():
    turn = lambda h, x: ((h + 0.797) * x, None)
    f = lambda x: lax.scan(turn, jnp.zeros((), BF16), x)[0]
    report = audit_precision(f, PARAM)
    assert not report.is_traced_wide
    assert "does not trace with float32 arguments" in str(report)
    assert "not trace" not in str(audit_precision(f, PARAM, matmul_precision="tpu"))
    assert [row.value for row in report.unknown] == [float(BF16(0.797))]


def test_a_limit_of_the_dtype_is_told_as_the_program_has_it():
    (row,) = audit_precision(
        lambda x: jnp.minimum(jnp.exp(x), jnp.finfo(x.dtype).max),
        jnp.linspace(1, 14, 8).astype(F16),
    ).losses
    assert row.constant == "3.402823e+38 -> 65504"


def test_a_power_of_two_is_meant_as_it_is():
    assert not audit_precision(lambda x: x * 2.0**-23, PARAM.astype(F32)).error


def test_a_mask_of_infinities_warns_of_nothing():
    mask = np.where(np.tri(8) > 0, 0, -np.inf).astype(np.float32)
    x = jnp.sin(jnp.arange(64.0)).reshape(8, 8)
    assert audit_precision(lambda x: jax.nn.softmax(x + mask), x).losses


def test_an_infinite_number_of_a_constant_is_rounded_to_itself():
    (loss,) = audit_precision(
        lambda x: jnp.where(x > 0.5, 0.7 * x, -jnp.inf), jnp.ones(2), narrow=F16
    ).losses
    assert loss.constant == "0.7 -> 0.700195312"
