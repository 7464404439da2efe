"""Reports as text and JSON."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from helpers import OPTAX
from one_leaf import counter, one_leaf, struct

from dtypeguard import AuditReport, audit, guard

pytestmark = pytest.mark.third_party

BF16, F32 = jnp.bfloat16, jnp.float32
WIDE = jnp.ones(3, F32)


@pytest.mark.skipif(OPTAX < (0, 2, 8), reason="its lines are other ones")
def test_text_of_a_report():
    params = {
        "b": jax.ShapeDtypeStruct((2,), F32),
        "w": jax.ShapeDtypeStruct((3,), BF16),
    }
    report = audit(optax.contrib.prodigy(), params)
    text = re.sub(r"py:\d+", "py:N", str(report))
    assert text == (
        "audit: 2 state leaves changed dtype, 1 update would promote a param "
        "in one update.\n"
        "  .estim_lr            bfloat16 -> float32  optax/contrib/_prodigy.py:N\n"
        "  .numerator_weighted  bfloat16 -> float32  optax/contrib/_prodigy.py:N\n"
        "  updates['w']         bfloat16 -> float32  optax/contrib/_prodigy.py:N\n"
        "Wrap the optimizer: dtypeguard.guard(prodigy(...)).\n"
        "A cast to bfloat16 rounds: dtypeguard.audit_precision measures what that loses."
    )
    codes = {drift.path: drift.origin.code for drift in report.drifts}
    assert codes[".estim_lr"] == "estim_lr = jnp.maximum(state.estim_lr, lr_estimate)"
    assert codes[".numerator_weighted"].startswith("numerator_weighted += ")


def test_json():
    opt = one_leaf(lambda p: jnp.zeros((), BF16), lambda m: m * WIDE[0])  # <planted>
    report = audit(opt, struct(BF16))
    read = json.loads(report.to_json())
    assert read["ok"] is False
    (drift,) = read["drifts"]
    assert drift["path"] == ".leaf"
    assert drift["origin"]["file"] == __file__
    assert drift["origin"]["code"].endswith("# <planted>")
    assert json.loads(AuditReport().to_json())["ok"] is True


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
    of_error = audit(one_leaf(lambda p: 1 / 0, lambda m: m), struct(F32))
    guarded = audit(guard(one_leaf(counter, lambda n: n + 0.5)), struct(F32))
    for report in (audit(optax.sgd(1), struct(F32)), of_error, guarded):
        read = json.loads(report.to_json())
        keys = "ok drifts wide_operations changed_constants compilations error refusal "
        keys += "name subject remedy"
        assert list(read) == keys.split()
        assert read["refusal"] == (None if report.ok else report.error.message)


def test_what_a_guard_casts_back_to_few_bits_rounds():
    def lost(dtype, wide=F32):
        step = lambda state: state * jnp.ones(3, wide)
        *_, last = str(audit(step, jnp.zeros(3, dtype))).splitlines()
        return last.partition(" rounds:")[0]

    assert lost(BF16) == "A cast to bfloat16"
    assert lost(jnp.float16) == "A cast to float16"
    weak = audit(lambda n: n * 2.0, jnp.ones((), BF16) * 1)
    assert "rounds" not in str(weak)
    assert "rounds" not in str(audit(lambda n: n + 0.5, jnp.zeros(3, jnp.int32)))


def test_many_leaves_of_one_cause_share_a_row():
    def step(carry):
        return jax.tree_util.tree_map(lambda x: x * np.float32(2), carry)  # all of them

    layers = {f"w{n}": jnp.zeros(n + 1, BF16) for n in range(40)}
    report = audit(step, {"mu": layers, "nu": layers})
    head, row, *rest = str(report).splitlines()
    assert head.startswith("audit: 80 leaves of the carry changed dtype")
    assert re.match(
        r"  80 leaves of carry\['mu'\] and carry\['nu'\]  bfloat16 -> float32  ", row
    )
    assert rest[-1] == "Every leaf: the report's drifts, or --json."
    assert len(report.drifts) == len(report.lines()) == 80
