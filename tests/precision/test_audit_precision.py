"""What a report of audit_precision says: the answer, lines, remedies."""

import functools
import json
import pickle

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import dtypeguard.testing
from dtypeguard import PrecisionReport, audit_precision
from dtypeguard.testing import check_precision
from tests.support import helpers
from tests.support.dtypes import BF16, F16, F32
from tests.support.helpers import average, users_programs

pytestmark = users_programs
normal = functools.partial(helpers.normal, dtype=BF16)
AVERAGED = jnp.ones(3, BF16), jnp.zeros((500, 3), BF16)


def test_a_program_in_wide_types_has_nothing_to_report():
    report = audit_precision(lambda x: x + x, normal(0, 3, dtype=F32), wide=F32)
    assert report.error == 0
    assert str(report) == "precision: the outputs are those of float32."


def test_a_tolerance_is_what_the_fix_reaches():
    def f(x, w):
        logits = 10 * (jnp.tanh(x @ w) @ w)
        return logits - jnp.log(jnp.sum(jnp.exp(logits), -1, keepdims=True))

    args = normal(0, 16, 8, dtype=F32), normal(1, 8, 8, dtype=F32)
    error = audit_precision(f, *args, narrow=BF16, seconds=0).error
    assert error > 1e-3
    within = audit_precision(f, *args, narrow=BF16, tolerance=error / 3)
    assert within.plan.entries
    assert within.left <= 1 / 9 + 1e-6
    assert audit_precision(f, *args, narrow=BF16, tolerance=1.0).fix == ()


def test_the_second_sentence_is_the_answer():
    def f(x):
        y = jnp.exp(x)  # loses
        return y.astype(F32) * 3 + x.astype(F32)

    report = audit_precision(f, normal(0, 500), tolerance=1e-5)
    first = str(report).splitlines()[0]
    assert f"With {report.fix[0].place} in float32 it is 0" in first
    assert first.endswith("within your 0.001%.")


def test_json_has_all_of_it_and_pickling_keeps_it():
    report = audit_precision(average, *AVERAGED)
    found = json.loads(report.to_json())
    assert found["losses"][0]["constant"] == "0.999 -> 1"
    assert found["run"]["wide"] == "float32"
    assert found["outputs"][""]["unmoved"] == 1
    costs = audit_precision(jnp.tanh, jax.ShapeDtypeStruct((3,), BF16))
    for each in (report, costs, PrecisionReport()):
        assert pickle.loads(pickle.dumps(each)) == each
    assert report != costs
    assert report != "a report"


def test_as_a_test(monkeypatch):
    asked = []

    def audited(*args, seconds=60, **options):
        asked.append(seconds)
        return audit_precision(*args, seconds=seconds, **options)

    monkeypatch.setattr(dtypeguard.testing, "audit_precision", audited)
    check_precision(average, *AVERAGED, max_error=2)
    assert asked == [0]  # a check that passes measures no line
    told = r"average has .* more than 0\.1\.\nprecision: Rounding takes the update away in"
    with pytest.raises(AssertionError, match=told):
        check_precision(average, *AVERAGED, max_error=0.1)


AS_WRITTEN = {
    "eig": (lambda x: jnp.abs(jnp.linalg.eig(x)[0]), {"narrow": BF16}),
    "random_gamma": (lambda x: jax.random.gamma(jax.random.key(0), 1 + x**2), {}),
    "pure_callback": (lambda x: jax.pure_callback(lambda x: 2 * x, x, x), {}),
}


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_what_has_no_wide_form_runs_as_written_and_is_named(name):
    f, options = AS_WRITTEN[name]
    report = audit_precision(f, normal(0, 3, 3, dtype=F32), **options)
    assert name in report.not_examined
    assert report.error < 0.1
    assert name in str(report)


def test_it_refuses_tracers():
    with pytest.raises(TypeError, match=r"call it outside of jax\.jit"):
        jax.jit(lambda x: audit_precision(jnp.sin, x).error)(jnp.ones(3))


# Remedies are for what the line computes.


def test_lines_inside_of_jax_have_a_remedy():
    report = audit_precision(jnp.tanh, 0.3 * jnp.ones(4, BF16))
    assert report.losses[0].place == "inside JAX"
    assert "Compute the call of tanh in float32." in str(report)


@pytest.mark.parametrize("x64", [False, True])
def test_a_remedy_in_float64_says_what_that_needs(x64):
    report = audit_precision(lambda x: 1.3 * x, jnp.arange(3.0), x64=x64)
    assert report.fix[0].remedy.endswith(" That needs jax_enable_x64.") is not x64


def test_complex_numbers_are_computed_in_complex_ones():
    z = (jnp.arange(1, 4) + 0.3j).astype(jnp.complex64)
    report = audit_precision(lambda z: z * jnp.exp(1j * z), z)
    assert "in complex128" in report.fix[0].remedy


def test_the_carry_of_a_loop_is_to_start_wide():
    assert "start the carry in float32 as well" in str(audit_precision(average, *AVERAGED))
    start, xs = AVERAGED
    assert audit_precision(average, start.astype(F32), xs).error < 1e-6


def test_the_fix_is_named_where_another_line_is_the_first_that_is_not_finite():
    def f(x):
        small = x * 1e-4
        square = small * small  # 0 in float16
        return (small / jnp.sqrt(square)).astype(F32)

    report = audit_precision(f, jnp.arange(1, 4).astype(F16))
    (loss,) = report.fix
    assert report.not_finite.line == loss.origin.line + 1
    assert f"With {loss.place} in float32 it is" in str(report)


def test_a_line_that_only_flips_decisions_is_the_fix():
    """Its rounding adds nothing to the outputs, but what it decides is all of the error."""

    def f(x, w):
        scores = x.astype(BF16) * 1.3
        _, best = jax.lax.top_k(scores, 4)
        # A mask, which is infinite in wide types as well, leaves the decisions.
        return jnp.sum(w[best].astype(F32), 0), -jnp.inf

    report = audit_precision(f, 1 + normal(0, 256, dtype=F32) * 0.002, normal(1, 256, 64))
    assert report.decisions.share == 1
    assert [each.origin.code for each in report.fix] == ["scores = x.astype(BF16) * 1.3"]
    assert report.left == 0


def test_a_fix_says_if_all_after_it_is_wide():
    """Three layers lose alike; with the first one wide, all products are."""
    weights = [normal(seed, 32, 32) / 6 for seed in range(3)]

    def f(weights, x):
        x = jnp.tanh(x @ weights[0])
        x = jnp.tanh(x @ weights[1])
        return jnp.tanh(x @ weights[2])

    report = audit_precision(f, weights, normal(9, 64, 32))
    first = str(report).splitlines()[0]
    assert f"With {report.fix[0].place} in float32" in first
    assert "but then 100% of the matrix products become float32" in first


UNPACKED = {
    "in two": lambda state: tuple(state),
    "by rows of ones": lambda state: tuple(jnp.eye(2, dtype=state.dtype) @ state),
    "times one": lambda state: (1.0 * state[0], state[1]),
}


@pytest.mark.parametrize("name", UNPACKED)
def test_a_line_that_only_unpacks_a_carried_state_has_no_share(name):
    def step(state, _):
        x, v = UNPACKED[name](state)
        x = x + 0.01 * v
        v = v - 0.01 * x
        return jnp.stack([x, v]), None

    report = audit_precision(
        lambda state: lax.scan(step, state, length=200)[0], normal(0, 2, 3)
    )
    assert {loss.origin.code[:6] for loss in report.losses} == {"x = x ", "v = v "}
    assert all(loss.share > 0 for loss in report.losses), report
