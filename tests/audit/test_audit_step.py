"""Audits of a step: its carry, the lines, the errors, the advice."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import dtypeguard
from dtypeguard import audit, guard_step
from tests.support import planted_steps
from tests.support.dtypes import BF16, F32, I8, I32
from tests.support.helpers import HAS_X64_SCOPE, set_x64
from tests.support.one_leaf import HUGE

pytestmark = pytest.mark.third_party
WIDE, ONE = jnp.ones(3, F32), jnp.ones((), F32)


@pytest.mark.parametrize("name", planted_steps.CASES)
def test_what_is_guarded_is_clean_or_says_what_to_write(name):
    case = planted_steps.CASES[name]
    options = dict(case.options)
    places = {k: options[k] for k in ("carry", "returned") if k in options}
    bare = audit(case.step, *case.args, **options)
    guarded = audit(guard_step(case.step, **places), *case.args, **options)
    if bare.refusal is None:
        assert guarded.ok
        assert bare.advice.startswith("Wrap the step: dtypeguard.guard_step(")
    else:
        assert not guarded.ok
        assert bare.advice.startswith("dtypeguard.guard_step does not fix this: Dtype")
        assert f"  {case.path}  " in bare.advice
        assert case.path in guarded.error.message


def test_the_carry_by_position_by_name_and_several():
    def step(loss, params, *, count):
        return {"count": count + I8(1), "params": params + ONE}

    given = ONE, jnp.ones(3, BF16)
    options = {"kwargs": {"count": jnp.zeros((), I8)}}
    of = lambda **places: audit(step, *given, **places, **options)
    assert of(carry="count", returned="count").ok
    report = of(carry=(1, "count"), returned=("params", "count"))
    assert [drift.path for drift in report.drifts] == ["params"]
    assert report.advice == (
        "Wrap the step: dtypeguard.guard_step(step, carry=(1, 'count'), "
        "returned=('params', 'count'))."
    )
    swapped = of(carry=("params", "count"), returned=("count", "params")).drifts
    found = [(drift.path, drift.kind) for drift in swapped]
    assert found == [(x, kind) for x in ("params", "count") for kind in ("dtype", "shape")]


def test_a_first_carry_that_is_weak():
    tick = lambda state: state | {"time": state["time"] + F32(0.5)}
    widen = lambda state: tick(state) | {"leaf": state["leaf"] * WIDE}
    weak = {"time": 0.0, "leaf": jnp.zeros(3, BF16)}
    report = audit(tick, weak)
    (drift,) = report.drifts
    assert (drift.path, drift.kind) == ("state['time']", "weak_type")
    assert (drift.before, drift.after) == ("float32 (weak)", "float32")
    begin = "Begin with a strongly typed carry: dtypeguard.strong(state)."
    assert report.advice == begin
    assert audit(tick, dtypeguard.strong(weak)).ok
    wrap = "Wrap the step: dtypeguard.guard_step(step)."
    assert audit(widen, weak).advice == f"{wrap} {begin}"
    assert audit(guard_step(widen), dtypeguard.strong(weak)).ok
    two = audit(lambda a, n: (a + ONE, n + 1), 0.0, 0, carry=(0, 1))
    assert two.advice.endswith("carry: dtypeguard.strong(a).")


def test_a_64_bit_carry_with_x64_off():
    """JAX computes it in 32 bits, whatever a guard does: a scan needs the region."""
    with set_x64(True):
        first, x = jnp.ones(3, jnp.float64), WIDE
    step = lambda mean, x: (0.9 * mean + x, None)
    assert "call step within jax.enable_x64(True)" in audit(step, first, x).advice
    with set_x64(True):
        assert audit(step, first, x).ok


def test_what_comes_back_as_no_array():
    report = audit(lambda x: "text", WIDE)
    assert report.refusal.splitlines()[1].endswith("return an array of jnp.float32")


def test_nothing_runs_and_nothing_is_allocated():
    def step(state, x):
        assert isinstance(x["x"], jax.core.Tracer)
        return state * x["x"]

    before = len(jax.live_arrays())
    assert audit(step, HUGE, {"x": jax.ShapeDtypeStruct((), BF16)}).ok
    assert all(array.size < 10**6 for array in jax.live_arrays()[before:])


def test_the_caller_s_containers_are_left_as_they_are():
    def step(state):
        state["count"] = state["count"] + 0.5
        return state

    first = {"count": jnp.zeros((), I32)}
    (drift,) = audit(step, first).drifts
    assert (drift.before, drift.after) == ("int32", "float32")
    assert first["count"].dtype == I32


def test_a_step_that_does_not_trace():
    def step(x):
        return lax.while_loop(lambda c: True, lambda c: c * WIDE, x)

    report = audit(step, jnp.zeros(3, BF16))
    assert set(report.error.types) == {"bfloat16[3]", "float32[3]"}
    assert report.error.origin.file == __file__
    assert report.compilations is None
    first, second, *_, last = str(report).splitlines()
    assert first == "audit: the step does not trace."
    assert second == f"  {' and '.join(report.error.types)} disagree"
    assert last == "dtypeguard.guard_step does not fix this."


def test_a_step_that_traces_with_x64_off_alone():
    step = lambda x: lax.scan(lambda c, _: (c * jnp.ones(3), None), x, None, length=2)[0]
    report = audit(step, WIDE, x64=True)
    assert report.error is not None
    assert audit(guard_step(step), WIDE, x64=True).ok is HAS_X64_SCOPE
    assert ("Wrap the step:" in report.advice) is HAS_X64_SCOPE


@pytest.mark.parametrize(
    ("step", "first"),
    [
        (lambda s: s * 2, jnp.ones(3, BF16)),
        (lambda s: s * WIDE, jnp.ones(3, BF16)),
        (lambda s: s + ONE, 0.0),
        (lambda s: jnp.where(s > 0, 0.0, 1.0), ONE),
    ],
)
def test_as_many_compilations_as_are_told(step, first):
    traced = []
    jitted = jax.jit(lambda s: traced.append(s) or step(s))
    carry = first
    for _ in range(4):
        carry = jitted(carry)
    assert audit(step, first).compilations == len(traced)
