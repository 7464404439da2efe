"""Reports as text and JSON."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtypeguard import AuditReport, audit, guard
from tests.support.dtypes import BF16, F32
from tests.support.one_leaf import counter, one_leaf, struct

pytestmark = pytest.mark.third_party

WIDE = jnp.ones(3, F32)


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
    half = lambda carry: (carry[0] + 0.5, carry[1] * WIDE)  # of which the first is refused
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
