"""Audits name the line of every planted drift, and the line that forced it."""

import sys

import jax
import jax.numpy as jnp
import planted
import pytest

from dtypeguard import audit

pytestmark = pytest.mark.third_party


@pytest.mark.parametrize("name", planted.CASES)
def test_planted(name):
    case = planted.CASES[name]
    params = {"w": jax.ShapeDtypeStruct((3,), jnp.bfloat16)}
    grads = {"w": jax.ShapeDtypeStruct((3,), case.grads)}
    report = audit(case.opt, params, updates=grads, x64=case.x64)
    if name == "multi_steps_inside" and report.error:
        # Before Optax 0.2.5 the branches of its own cond differ then.
        assert sorted(report.error.types) == ["bfloat16[3]", "float32[3]"]
        return
    assert report.error is None
    of_case = ".leaf" if case.where == "state" else "['w']"
    # Up to Optax 0.2.6 the accumulator of MultiSteps drifts by itself.
    drifts = [d for d in report.drifts if d.where == case.where]
    (drift,) = [d for d in drifts if d.path.endswith(of_case)]
    planted.assert_told(drift, case, name)


def test_every_case_is_marked():
    assert all(planted.marked(name, "promotion") for name in planted.CASES)
    assert sum(planted.marked(name, "operand") is None for name in planted.CASES) == 2


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 has no sys.monitoring")
def test_tools_that_monitor_are_left_alone():
    case = planted.CASES["asarray_of_a_float"]
    params = {"w": jax.ShapeDtypeStruct((3,), jnp.bfloat16)}
    monitoring, seen = sys.monitoring, []
    names = {tool: monitoring.get_tool(tool) for tool in range(6)}
    monitoring.use_tool_id(3, "other")
    monitoring.register_callback(3, monitoring.events.PY_START, lambda *_: seen.append(1))
    monitoring.set_events(3, monitoring.events.PY_START)
    try:
        (drift,) = audit(case.opt, params).drifts
        before = len(seen)
        audit(case.opt, params)
        assert len(seen) > before > 0
        assert monitoring.get_events(3) == monitoring.events.PY_START
        monitoring.use_tool_id(4, "another")
        audit(case.opt, params)
    finally:
        monitoring.set_events(3, 0)
        for tool in (3, 4):
            monitoring.free_tool_id(tool)
    assert drift.cause != drift.origin
    assert names == {tool: monitoring.get_tool(tool) for tool in range(6)}


def test_a_trace_that_jax_kept_is_not_taken_for_the_callers():
    """`jnp.where` is jitted in JAX: its equations are those of who called it first."""
    jax.make_jaxpr(lambda c, x, y: jnp.where(c > 2, x, y))(
        jnp.int32(0), jnp.zeros(3, jnp.bfloat16), jnp.zeros(3, jnp.float32)
    )
    test_planted("where_made_from_nothing")
