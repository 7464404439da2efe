"""What a search and a report promise holds: no false success, and no search that dies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import need

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS
from dtypeguard._precision.curve import check_call, plan_call
from dtypeguard._precision.planned import inputs_of

pytestmark = pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def searched(f, args, tolerance, held_out=()):
    inputs = inputs_of("audit_precision", (), held_out, {})
    return plan_call(f, args, {}, BF16, tolerance, inputs, lambda text: None)


def test_a_program_that_raises_in_narrow_types_is_infinitely_far_off():
    equinox = need("equinox")

    def f(w, x):
        z = x @ w
        off = jnp.abs(jnp.sum(z, 0) - jnp.sum(x, 0) @ w)
        return equinox.error_if(jnp.tanh(x @ w), jnp.any(off > 1e-2), "not conserved")

    args = normal(0, 8, 8), normal(1, 16, 8)
    found = searched(f, args, 0.02)
    assert found.is_within
    assert any(entry.error == np.inf for entry in found.plan.entries)
    report = audit_precision(f, *args, narrow=BF16)
    assert report.error == np.inf
    assert report.mended < 0.02


def test_what_is_held_out_counts_for_a_search_as_for_a_check(tmp_path):
    f = lambda w, x: x @ w
    w, x = normal(0, 16, 16), normal(1, 32, 16)
    w = w.at[1].set(w[0])
    far = w, x.at[:, 0].add(300.0).at[:, 1].add(-300.0)  # which cancel
    near = searched(f, (w, x), 0.01)
    assert near.is_within
    found = searched(f, (w, x), 0.01, held_out=[far])
    assert found.plan.error <= 0.01 < found.plan.held_out
    assert not found.is_within
    assert ", not within 1%." in found.headline
    found.plan.save(tmp_path / "far.plan")
    inputs = inputs_of("audit_precision", (), [far], {})
    check = check_call(
        f, (w, x), {}, tmp_path / "far.plan", None, inputs, lambda text: None
    )
    assert check.is_within == found.is_within


def test_a_plan_with_nothing_narrow_is_no_success():
    f = lambda w, x: x @ w
    found = searched(f, (normal(0, 8, 8), normal(1, 8, 8)), 1e-6)
    assert found.plan.share == 0
    assert "nothing to gain" in found.headline
    assert not found.is_of_use


def test_a_gradient_is_not_called_by_the_name_of_its_loss():
    loss = lambda w: jnp.sum((w @ w) ** 2)
    loss.__name__ = loss.__qualname__ = "loss"
    measured = lambda f: searched(f, (normal(0, 4, 4),), 0.1).plan.measured
    around = "autocast(a function around loss), with the gradient inside"
    assert measured(loss) == measured(jax.jit(loss)) == "autocast(loss)"
    assert measured(jax.grad(loss)) == measured(jax.jit(jax.grad(loss))) == around


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


def test_products_that_are_too_small_for_a_device():
    x, y = normal(0, 4, 4), normal(1, 4, 4)
    product = lambda x, y: x @ y
    report = audit_precision(product, x, y, matmul_precision="a100")
    assert "or is too small to be" in report.headline
    rounded = lambda x: jax.lax.reduce_precision(x, 8, 10)
    reference = np.asarray(product(rounded(x), rounded(y)))
    report = audit_precision(product, x, y, reference=reference)
    assert report.differences[0].verdict == "differs"
    assert 'matmul_precision="tensorfloat32"' in report.differences[0].reason
