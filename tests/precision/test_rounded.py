"""What was rounded before the program saw it: an argument, or a constant of 16 bits."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax, nn

import dtypeguard
from dtypeguard import Policy, audit_precision
from tests.support.dtypes import BF16, F16, F32
from tests.support.helpers import needs_numbers

pytestmark = [pytest.mark.third_party, needs_numbers]
PARAMS, GRADS = jax.device_put(
    [{"w": np.linspace(start, 1, 8).astype(BF16)} for start in (0.5, -1)]
)
X = PARAMS["w"]


def test_a_hyperparameter_that_its_dtype_rounds_to_1_leads_the_report():
    opt = optax.inject_hyperparams(optax.adam)(1e-3)
    update = lambda grads, state: opt.update(grads, state)[0]
    said = re.escape("state.hyperparams['b2'] is 1 in bfloat16, to which 0.999 rounds. ")
    with pytest.raises(ValueError, match=f"{said}.*compute_dtype=jnp.float32.* Otherwise "):
        audit_precision(update, GRADS, opt.init(PARAMS))
    guarded = dtypeguard.guard(opt, policy=Policy(compute_dtype=F32))
    update = lambda grads, state: guarded.update(grads, state, PARAMS)[0]
    report = audit_precision(update, GRADS, guarded.init(PARAMS))
    assert np.isfinite(report.error)
    assert not report.rounded


def test_it_leads_where_the_outputs_are_finite_too():
    f = lambda decay, x: x / (1 + 1 / (1 - decay))
    report = audit_precision(f, jnp.asarray(0.999, BF16), X)
    assert report.headline.startswith("decay is 1 in bfloat16, to which 0.999 rounds.")
    f = lambda eps, x: 1 / (1 + 1 / (x * 0 + eps))
    (row,) = audit_precision(f, jnp.asarray(1e-8, F16), X.astype(F16)).rounded
    assert (row.value, row.meant) == (0, 1e-8)


def test_a_number_that_is_meant_to_be_0_or_1_is_none():
    f = lambda scale, x: jnp.log(x * scale)
    assert not audit_precision(f, jnp.asarray(1, BF16), X).rounded


def test_a_constant_that_is_narrow_in_float32_as_well_is_named_with_its_half_unit():
    known = jnp.linspace(0.1, 0.9, 8).astype(BF16)  # weights that a closure holds

    def f(x):
        y = x * jnp.asarray(0.797, BF16) * jnp.asarray(0.75, BF16)
        return y * known

    report = audit_precision(f, X)
    (row,) = report.unknown
    assert (row.value, row.within) == (float(BF16(0.797)), 2**-9)
    assert f"0.796875 (within 0.002, {row.origin.place})" in str(report).splitlines()[0]


def test_an_array_of_an_explicit_dtype_is_named():
    (row,) = audit_precision(lambda x: x * jnp.array([0.797] * 8, BF16), X).unknown
    assert row.value == float(BF16(0.797))


def test_what_does_not_trace_with_float32_arguments_says_so():
    turn = lambda h, x: ((h + 0.797) * x, None)
    report = audit_precision(lambda x: lax.scan(turn, jnp.zeros((), BF16), x)[0], X)
    assert not report.is_traced_wide
    assert "does not trace with float32 arguments" in str(report)
    assert [row.value for row in report.unknown] == [float(BF16(0.797))]


def test_a_limit_of_the_dtype_is_told_as_the_program_has_it():
    (row,) = audit_precision(
        lambda x: jnp.minimum(jnp.exp(x), jnp.finfo(x.dtype).max),
        jnp.linspace(1, 14, 8).astype(F16),
    ).losses
    assert row.constant == "3.402823e+38 -> 65504"


def test_a_power_of_two_is_meant_as_it_is():
    assert not audit_precision(lambda x: x * 2.0**-23, X.astype(F32)).error


def test_a_mask_of_infinities_warns_of_nothing():
    mask = np.where(np.tri(8) > 0, 0, -np.inf).astype(np.float32)
    x = jnp.sin(jnp.arange(64.0)).reshape(8, 8)
    assert audit_precision(lambda x: nn.softmax(x + mask), x).losses


def test_an_infinite_number_of_a_constant_is_rounded_to_itself():
    (loss,) = audit_precision(
        lambda x: jnp.where(x > 0.5, 0.7 * x, -jnp.inf), jnp.ones(2), narrow=F16
    ).losses
    assert loss.constant == "0.7 -> 0.700195312"
