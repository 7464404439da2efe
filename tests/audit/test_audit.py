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

from dtypeguard import AuditReport, Policy, audit, guard
from tests.support.dtypes import BF16, F32, F64
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
    opt = one_leaf(counter, lambda n: n + jnp.sum(n > 0))
    report = audit(opt, struct(F32), x64=True)
    assert [drift.after for drift in report.drifts] == ["int64"]
    assert audit(opt, struct(F32)).ok
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
    assert audit(
        transformation(), params, updates={"w": jnp.ones((7, 3)), "b": jnp.ones((7, 5, 3))}
    ).ok


def test_wide_updates_alone_compile_once():
    """`optax.apply_updates` casts the sum, so the next step has the same types."""
    report = audit(optax.scale(np.float32(2)), struct(BF16))
    assert [drift.where for drift in report.drifts] == ["updates"]
    assert report.compilations == 1


def test_text_of_a_report_on_a_step():
    def widen(state, x):
        return state * jnp.ones(3, F32)  # the planted line

    report = audit(widen, jnp.zeros(3, BF16), 1.0)
    origin = report.drifts[0].origin
    assert origin.code.endswith("# the planted line")
    assert origin.line == widen.__code__.co_firstlineno + 1
    assert str(report) == (
        "audit: 1 leaf of the carry changed dtype in one step.\n"
        f"  state  bfloat16 -> float32  {origin}  forced by {origin}\n"
        "Wrap the step: dtypeguard.guard_step(widen).\n"
        "A cast to bfloat16 rounds: dtypeguard.audit_precision measures what that loses."
    )
    assert (report.ok, report.compilations) == (False, 2)
    assert repr(report) == "<AuditReport: 1 leaf of the carry changed dtype in one step.>"
    assert json.loads(report.to_json())["drifts"][0]["where"] == "carry"


def test_json_has_the_keys_of_the_stability_page():
    """Also of a program that does not trace, and of one that nothing mends."""
    drifting = one_leaf(lambda p: jnp.zeros((), BF16), lambda m: m * WIDE[0])  # <planted>
    found = audit(drifting, struct(BF16))
    of_error = audit(one_leaf(lambda p: 1 / 0, lambda m: m), struct(F32))
    guarded = audit(guard(one_leaf(counter, lambda n: n + 0.5)), struct(F32))
    for report in (AuditReport(), found, of_error, guarded):
        read = json.loads(report.to_json())
        keys = "ok drifts wide_operations changed_constants compilations error refusal "
        keys += "name subject remedy"
        assert list(read) == keys.split()
        assert read["ok"] is report.ok
        assert read["refusal"] == (report.error and report.error.message)
    (drift,) = json.loads(found.to_json())["drifts"]
    assert (drift["path"], drift["origin"]["file"]) == (".leaf", __file__)
    assert drift["origin"]["code"].endswith("# <planted>")


def test_what_a_guard_casts_back_to_few_bits_rounds():
    def lost(dtype, wide=F32):
        step = lambda state: state * jnp.ones(3, wide)
        *_, last = str(audit(step, jnp.zeros(3, dtype))).splitlines()
        return last.partition(" rounds:")[0]

    assert lost(BF16) == "A cast to bfloat16"
    assert lost(jnp.float16) == "A cast to float16"
    assert "rounds" not in str(audit(lambda n: n * 2.0, jnp.ones((), BF16) * 1))
    half = lambda carry: (
        carry[0] + 0.5,
        carry[1] * WIDE,
    )  # of which the first is refused
    assert "rounds" not in str(audit(half, (jnp.zeros(3, jnp.int32), jnp.zeros(3, BF16))))


def test_many_leaves_of_one_cause_share_a_row():
    def step(carry):
        return jax.tree_util.tree_map(lambda x: x * np.float32(2), carry)  # all of them

    layers = {f"w{n}": np.zeros(n + 1, BF16) for n in range(40)}
    report = audit(step, {"mu": layers, "nu": layers})
    head, row, *_ = str(report).splitlines()
    assert head.startswith("audit: 80 leaves of the carry changed dtype")
    assert re.match(r"  80 leaves carry\['\*'\]\['\*'\]  bfloat16 -> float32  ", row)
    assert len(report.drifts) == len(report.changes()) == 80


def test_64_bit_scalars_and_arrays():
    def change(leaf):
        return (leaf.astype(F64) * 2).astype(F32)  # the planted line

    for shape, is_array in (((), False), ((3,), True)):
        opt = one_leaf(lambda params, shape=shape: jnp.zeros(shape, F32), change)
        report = audit(opt, struct(F32), x64=True)
        assert report.ok
        assert {wide.is_array for wide in report.wide_operations} == {is_array}
        assert all("planted" in wide.origin.code for wide in report.wide_operations)
        assert "2 operations in 64 bits" in str(report)
        # A program with a 64-bit input may compute in 64 bits.
        assert audit(opt, struct(F64), x64=True).wide_operations == ()


def test_64_bit_operations_of_init_and_complex_ones():
    first = lambda p: (jnp.zeros((), jnp.complex128) + 1).real.astype(F32)  # planted
    opt = one_leaf(first, lambda m: m)
    (wide, *_) = audit(opt, struct(F32), x64=True).wide_operations
    assert (wide.type, wide.is_array) == ("complex128[]", False)
    assert wide.origin.code.endswith("# planted")
    # A gradient of 64 bits is an input like any other.
    wide = struct(F64)
    assert audit(opt, struct(F32), updates=wide, x64=True).wide_operations == ()


def test_64_bit_operations_of_a_step():
    step = lambda x: (x.astype(F64) * 2).astype(F32)
    report = audit(step, jax.ShapeDtypeStruct((3,), F32), x64=True)
    assert report.ok
    assert "operations in 64 bits though no input is (2 on arrays)" in str(report)
    # Nor is a Python number, which is weakly typed.
    both = lambda carry: (step(carry[0]), carry[1])
    assert audit(both, (jax.ShapeDtypeStruct((3,), F32), 0.5), x64=True).wide_operations
    wide = jax.ShapeDtypeStruct((3,), F64)
    assert audit(lambda x: x * 2, wide, x64=True).wide_operations == ()
