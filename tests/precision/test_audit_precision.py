"""audit_precision on programs that lose precision on a known line, and on mended ones."""

import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from healthy import spread
from jax import lax

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS
from dtypeguard.testing import check_precision

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8"),
]
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def average(mean, xs):
    step = lambda mean, x: (0.999 * mean + 0.001 * x, None)
    return lax.scan(step, mean, xs)[0]


AVERAGED = jnp.ones(3, BF16), jnp.zeros((500, 3), BF16)


def normal(seed, *shape, dtype=BF16):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def test_a_program_in_wide_types_has_nothing_to_report():
    x = normal(0, 3, dtype=F32)
    report = audit_precision(lambda x: x + x.astype(F32), x, wide=F32)
    assert report.error == 0
    assert str(report) == "precision: the outputs are those of float32."


def test_a_healthy_program_does_not_read_like_a_list_of_faults():
    report = audit_precision(spread, normal(0, 16, 4))
    assert "none stands out" in str(report)
    assert "Compute" not in str(report)


def test_the_whole_program_as_if_it_were_narrow():
    def loss(x, w):
        h = jnp.tanh(x @ w)
        logits = 10 * (h @ w)
        logp = logits - jnp.log(jnp.sum(jnp.exp(logits), -1, keepdims=True))
        return logp

    args = normal(0, 16, 8, dtype=F32), normal(1, 8, 8, dtype=F32)
    report = audit_precision(loss, *args, narrow=BF16)
    assert report.run.narrow == "bfloat16"
    assert report.error > 1e-3
    within = audit_precision(loss, *args, narrow=BF16, tolerance=report.error / 3)
    assert within.fix
    assert within.left <= 1 / 9 + 1e-6
    assert audit_precision(loss, *args, narrow=BF16, tolerance=1.0).fix == ()


def test_it_changes_no_flag_and_says_what_it_measured():
    report = audit_precision(average, *AVERAGED)
    assert not jax.config.jax_enable_x64
    found = json.loads(report.to_json())
    assert found["losses"][0]["constant"] == "0.999 -> 1"
    assert found["run"]["wide"] == "float32"
    double = audit_precision(lambda x: jnp.sum(jnp.sin(x)), jnp.arange(9.0))
    assert double.run.wide == "float64"
    assert 0 < double.error < 1e-5
    assert not jax.config.jax_enable_x64


def test_as_a_test():
    check_precision(average, *AVERAGED, max_error=2)
    with pytest.raises(
        AssertionError,
        match=r"more than 0\.1\.\nprecision: Rounding takes the update away in 100%",
    ) as e:
        check_precision(average, *AVERAGED, max_error=0.1)
    assert "average has a relative error of" in str(e.value)


def test_a_function_that_was_traced_before():
    step = lambda m, x: (0.999 * m + 0.001 * x, None)
    f = lambda m, xs: lax.scan(step, m, xs)[0]
    args = jnp.ones(3, BF16), jnp.zeros((300, 3), BF16)
    f(*args)
    first, second = (audit_precision(f, *args) for _ in range(2))
    assert first.error == second.error > 0.1


def gamma(x):
    return jax.random.gamma(jax.random.key(0), 1 + x**2)


AS_WRITTEN = {
    "gamma": (gamma, {}, "random_gamma"),
    "eig": (lambda x: jnp.abs(jnp.linalg.eig(x)[0]), {"narrow": BF16}, "eig"),
    "callback": (
        lambda x: jax.pure_callback(lambda x: 2 * x, x, x),
        {},
        "pure_callback",
    ),
    "bits": (lambda x: jnp.ldexp(1.7 * x, 2), {}, "bitcast_convert_type"),
}


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_what_has_no_wide_form_runs_as_written_and_is_named(name):
    f, options, primitive = AS_WRITTEN[name]
    report = audit_precision(f, normal(0, 3, 3, dtype=F32), **options)
    assert primitive in report.not_examined
    assert report.error < 0.1
    assert primitive in str(report)


def test_lines_inside_of_jax_have_a_remedy():
    report = audit_precision(jnp.tanh, 0.3 * jnp.ones(4, BF16))
    assert report.losses[0].place == "inside JAX"
    assert "no line outside JAX leads to tanh" in str(report)


def test_what_it_refuses_while_it_traces():
    with pytest.raises(TypeError, match=r"call it outside of jax\.jit"):
        jax.jit(lambda x: audit_precision(jnp.sin, x).error)(jnp.ones(3))


@pytest.mark.parametrize("x64", [False, True])
def test_a_remedy_in_float64_says_what_that_needs(x64):
    report = audit_precision(lambda x: 1.3 * x, jnp.arange(3.0), x64=x64)
    (advice,) = [line for line in str(report).splitlines() if line.startswith("Compute")]
    assert advice.endswith(" That needs jax_enable_x64.") is not x64


def test_complex_numbers_are_computed_in_complex_ones():
    z = jnp.arange(1, 4) + 0.3j
    report = audit_precision(lambda z: z * jnp.exp(1j * z), z.astype(jnp.complex64))
    assert "in complex128" in report.fix[0].remedy


def test_remedies_are_for_what_the_line_computes():
    positions = lambda dtype: lambda x: jnp.arange(600, dtype=dtype) * x
    report = audit_precision(positions(BF16), jnp.ones((), BF16), wide=F32)
    assert not audit_precision(positions(F32), jnp.ones((), BF16)).error
    line = inspect.getsourcelines(positions)[1]
    assert f"{__file__.rpartition('/')[2]}:{line} in float32." in str(report)

    report = audit_precision(average, *AVERAGED)
    assert "start the carry in float32 as well" in str(report)
    start, xs = AVERAGED
    assert audit_precision(average, start.astype(F32), xs).error < 1e-6

    narrow = audit_precision(lambda x: x * 300, jnp.full(3, 300, BF16), narrow=F16)
    assert "not finite in float16, and are in float32" in str(narrow)


def test_the_fix_is_named_where_another_line_is_the_first_that_is_not_finite():
    def f(x):
        small = x * 1e-4
        square = small * small  # 0 in float16
        return (small / jnp.sqrt(square)).astype(F32)

    report = audit_precision(f, jnp.arange(1, 4).astype(F16))
    (loss,) = report.fix
    assert report.not_finite.line == loss.origin.line + 1
    assert f"With {loss.place} in float32 it is" in report.headline + str(report)
    assert "With it in float32 it is" not in str(report)


# Python numbers that are rounded while JAX traces: which of a line is meant, and shown.

X = 2 + jnp.arange(16).reshape(4, 4).astype(BF16) / 16


def test_an_eps_beside_an_axis():
    """Both are 0 in float16, and only one of them was another number."""

    def f(g):
        return g / (jnp.sqrt(jnp.mean(g * g, 0)) + 1e-8)

    report = audit_precision(f, jnp.array([[0, 1], [0, 2]], F16))
    assert report.error == float("inf")
    assert report.fix[0].constant == "1e-08 -> 0"


def counted(x):
    step = lambda carry: (carry[0] + 1, carry[1] * 0.999)
    return lax.while_loop(lambda carry: carry[0] < 200, step, (0, x))[1]


ROUNDED = {  # a decay that is 1 in bfloat16, beside what is 1 as well
    "a count": counted,
    "an axis": lambda x: jnp.mean(x, 1) * 0.999,
    "an index": lambda x: x[1] * 0.999,
    "a keyword": lambda x: jax.nn.leaky_relu(-x, negative_slope=0.999),
    "made an array": lambda x: x * jnp.asarray(0.999, BF16),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_number_beside_others(name):
    f = ROUNDED[name]
    exact = f(np.asarray(X, np.float32) + jnp.zeros((), F32))
    if name == "made an array":
        exact = np.asarray(X, np.float32) * 0.999
    off = np.linalg.norm(np.asarray(f(X), np.float32) - exact) / np.linalg.norm(exact)
    report = audit_precision(f, X)
    assert report.error == pytest.approx(off, rel=0.01)
    assert report.losses[0].constant == "0.999 -> 1"


def test_a_number_that_makes_no_difference_is_not_shown():
    x = jnp.linspace(1, 2, 64).astype(BF16)
    scaled = lambda x: x * lax.rsqrt(jnp.mean(x * x) + 1e-6)
    (loss,) = audit_precision(scaled, x).losses
    assert loss.constant is None


def test_a_line_that_only_flips_decisions_is_the_fix():
    """Its rounding adds nothing to the outputs, but what it decides is all of the error."""

    def f(x, w):
        scores = x.astype(BF16) * 1.3
        _, best = jax.lax.top_k(scores, 4)
        return jnp.sum(w[best].astype(F32), 0)

    report = audit_precision(
        f, 1 + normal(0, 256, dtype=F32) * 0.002, normal(1, 256, 64, dtype=BF16)
    )
    assert report.decisions.share == 1
    assert [each.origin.code for each in report.fix] == ["scores = x.astype(BF16) * 1.3"]
    assert report.left == 0


def test_a_line_that_helps_only_since_all_after_it_is_wide_is_no_cause():
    """Three layers lose alike; with the first one wide, all products are."""
    weights = [normal(seed, 32, 32, dtype=BF16) / 6 for seed in range(3)]

    def f(weights, x):
        x = jnp.tanh(x @ weights[0])
        x = jnp.tanh(x @ weights[1])
        return jnp.tanh(x @ weights[2])

    report = audit_precision(f, weights, normal(9, 64, 32, dtype=BF16))
    assert len(report.fix) == 1
    assert "causes it" not in report.headline
    first, *rest = str(report).splitlines()
    assert f"With {report.fix[0].place} in float32" in first
    assert "but so 100% of the matrix products become float32" in first
    assert not any(line.startswith("Compute") for line in rest)


def test_turns_of_a_loop_under_vmap_are_decisions():
    def root(a):
        goes_on = lambda s: (jnp.abs(s[0] * s[0] - a) > 0.02 * a) & (s[1] < 30)
        step = lambda s: (0.5 * (s[0] + a / s[0]), s[1] + 1)
        return jax.lax.while_loop(goes_on, step, (a, 0))[0]

    a = (jnp.abs(normal(0, 40, dtype=F32)) * 30 + 1).astype(BF16)
    report = audit_precision(jax.vmap(root), a)
    assert report.decisions.lines
    assert 0.3 < report.decisions.share < 0.9
    assert "decisions that flipped" in str(report)
