"""audit_precision on programs that lose precision on a known line, and on mended ones."""

import inspect
import json

import jax
import jax.numpy as jnp
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
    assert report.is_spread, report
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
    assert report.narrow == "bfloat16"
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
    assert found["wide"] == "float32"
    double = audit_precision(lambda x: jnp.sum(jnp.sin(x)), jnp.arange(9.0))
    assert double.wide == "float64"
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
