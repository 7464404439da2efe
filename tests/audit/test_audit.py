"""Audits of optimizers: the leaves that drift, the lines, the errors, the advice."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from jax import lax

from dtypeguard import Policy, audit, guard
from tests.support.dtypes import BF16, F32
from tests.support.one_leaf import State, counter, one_leaf, struct, transformation

pytestmark = pytest.mark.third_party


def test_adam_names_the_moment_update():
    report = audit(optax.adam(1e-3), struct(BF16), updates=struct(F32))
    drift = report.drifts[0]
    assert (drift.path, drift.where, drift.kind) == ("[0].mu['w']", "state", "dtype")
    assert (drift.before, drift.after) == ("bfloat16", "float32")
    assert "update_moment" in drift.origin.function or "lambda" in drift.origin.function
    assert re.search(r"decay\)? \* \(?g|decay \* t", drift.origin.code)
    assert drift.cause is None  # the gradient is an input
    assert drift.origin.file.startswith(optax.__path__[0])
    assert (report.ok, report.compilations) == (False, 2)
    assert report.advice == "Wrap the optimizer: dtypeguard.guard(opt)."
    update = report.drifts[-1]
    assert (update.where, update.path, update.origin) == ("updates", "['w']", None)


def test_weak_leaves_of_an_optimizers_own_init_have_their_lines():
    loss = lambda params: jnp.sum(params["w"])
    extra_args = {"value": jnp.ones((), BF16), "grad": struct(BF16), "value_fn": loss}
    drifts = audit(optax.lbfgs(), struct(BF16), extra_args=extra_args).drifts
    assert [drift.kind for drift in drifts] == ["weak_type"] * 3
    assert all("jnp.asarray(" in drift.origin.code for drift in drifts)


def test_the_flag_is_the_callers():
    before = jax.config.jax_enable_x64
    report = audit(one_leaf(counter, lambda n: n + jnp.sum(n > 0)), struct(F32), x64=True)
    assert [drift.after for drift in report.drifts] == ["int64"]
    assert audit(one_leaf(counter, lambda n: n + jnp.sum(n > 0)), struct(F32)).ok
    assert jax.config.jax_enable_x64 is before


def test_extra_args():
    def update(updates, state, params=None, *, value, value_fn, skips):
        wide = value if skips else value * value_fn(params)  # a bool chooses what is traced
        return updates, State(state.leaf * wide)

    opt = optax.GradientTransformationExtraArgs(
        lambda params: State(jnp.zeros((), BF16)), update
    )
    extra_args = {"value": jnp.ones((), BF16), "value_fn": lambda p: jnp.sum(p["w"])}
    extra_args |= {"skips": False}
    assert audit(opt, struct(BF16), extra_args=extra_args).ok
    report = audit(opt, struct(F32), extra_args=extra_args)
    assert [drift.path for drift in report.drifts] == [".leaf"]
    assert audit(opt, struct(F32), extra_args=extra_args | {"skips": True}).ok


WIDE = jnp.ones(3, F32)
MASK = jnp.ones(3, bool)


@pytest.mark.parametrize(
    ("change", "types"),
    [
        (
            lambda m: lax.scan(lambda c, _: (c * WIDE, None), m, None, length=2)[0],
            {"bfloat16[3]", "float32[3]"},
        ),
        (lambda m: lax.select(m > 0, m, WIDE), {"bfloat16", "float32"}),
    ],
    ids=["scan", "operation"],
)
def test_what_does_not_trace(change, types):
    report = audit(one_leaf(lambda params: jnp.zeros(3, BF16), change), struct(BF16))
    assert not report.ok
    assert set(report.error.types) == types
    assert report.error.origin.file == __file__
    assert "lambda m: " in report.error.origin.code
    assert report.compilations is None
    lines = str(report).splitlines()
    assert lines[0] == "audit: the update does not trace."
    assert " and ".join(report.error.types) + " disagree" in lines[1]


def test_an_init_that_does_not_trace():
    report = audit(one_leaf(lambda params: 1 / 0, lambda m: m), struct(BF16))
    assert str(report).startswith("audit: the init does not trace.")
    assert report.error.message == "ZeroDivisionError: division by zero"
    assert report.error.types == ()
    assert report.error.origin.file == __file__


def test_the_advice_is_one_that_helps():
    advice = lambda opt, params: str(audit(opt, struct(params))).splitlines()[2:]
    to_float = one_leaf(counter, lambda n: n + 0.5)
    assert advice(to_float, F32)[:2] == [
        "dtypeguard.guard does not fix this: DtypeDriftError: "
        "update returned 1 leaf that cannot be brought back:",
        "  state.leaf  int32[] -> float32[],weak  return jnp.round(x).astype(jnp.int32) "
        "(the fraction is lost)",
    ]
    guarded = advice(guard(to_float), F32)
    assert guarded[0].startswith("    state.leaf  int32[] -> float32[],weak  return jnp.r")
    assert guarded[-1] == "dtypeguard.guard does not fix this."
    divided = one_leaf(counter, lambda n: 1 / 0)
    assert advice(divided, F32)[-1] == "dtypeguard.guard does not fix this."
    select = one_leaf(lambda p: jnp.zeros(3, BF16), lambda m: lax.select(m > 0, m, WIDE))
    assert advice(select, F32)[-1] == "dtypeguard.guard does not fix this."
    to_key = one_leaf(counter, lambda n: jax.random.key(0))
    assert "state.leaf  int32[] -> key<fry>[]  return an array" in advice(to_key, F32)[1]
    to_int = one_leaf(lambda p: jnp.zeros((), bool), lambda b: b * 1)
    assert advice(to_int, F32) == ["Wrap the optimizer: dtypeguard.guard(one_leaf(...))."]
    rescued = optax.stateless(lambda u, p: {"w": lax.select(MASK, u["w"], WIDE)})
    assert "disagree" in str(audit(rescued, struct(BF16)))
    assert advice(rescued, BF16)[-1].startswith("Wrap the optimizer: dtypeguard.guard(")


def test_a_policy_is_tried_where_a_guard_alone_does_not_help():
    """An `init` that fails for two 16-bit dtypes, which promote with nothing."""
    params = {"b": struct(jnp.float16)["w"], "w": struct(BF16)["w"]}
    policy = "policy=dtypeguard.Policy(compute_dtype=jnp.float32)"
    for opt in (
        optax.contrib.schedule_free(optax.sgd(1e-3), 1e-3),
        guard(optax.contrib.dog(1.0), policy=Policy(state_dtype=BF16)),
    ):
        report = audit(opt, params)
        assert report.refusal is None
        assert report.advice.startswith("Wrap the optimizer: dtypeguard.guard(")
        assert "compute_dtype=jnp.float32)" in report.advice
        assert json.loads(report.to_json())["remedy"] == report.advice
    assert policy in audit(optax.contrib.dog(1.0), params).advice
    assert audit(guard(optax.contrib.dog(1.0), policy=Policy(compute_dtype=F32)), params).ok


def test_the_audit_looks_at_the_leafs_own_gradient():
    params = {"w": jnp.ones(3), "b": jnp.ones((5, 3))}
    (drift,) = audit(
        transformation(lambda u, s, p=None: (u | {"w": u["b"]}, s)), params
    ).drifts
    assert (drift.path, drift.kind, drift.after) == ("['w']", "shape", "float32[5,3]")
    per_example = {"w": jnp.ones((7, 3)), "b": jnp.ones((7, 5, 3))}
    assert audit(transformation(), params, updates=per_example).ok


def test_wide_updates_alone_compile_once():
    """`optax.apply_updates` casts the sum, so the next step has the same types."""
    report = audit(optax.scale(np.float32(2)), struct(BF16))
    assert [drift.where for drift in report.drifts] == ["updates"]
    assert report.compilations == 1
