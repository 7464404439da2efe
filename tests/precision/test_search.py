"""The lines that a report proposes: what was run, is enough, and costs least."""

import jax
import jax.numpy as jnp
import pytest

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")
BF16, F32 = jnp.bfloat16, jnp.float32


def normal(seed, *shape, dtype=F32):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def test_a_line_that_only_flips_decisions_is_the_fix():
    """Its rounding adds nothing to the outputs, but what it decides is all of the error."""

    def f(x, w):
        scores = x.astype(BF16) * 1.3
        _, best = jax.lax.top_k(scores, 4)
        return jnp.sum(w[best].astype(F32), 0)

    report = audit_precision(f, 1 + normal(0, 256) * 0.002, normal(1, 256, 64, dtype=BF16))
    assert report.flipped == 1
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

    a = (jnp.abs(normal(0, 40)) * 30 + 1).astype(BF16)
    report = audit_precision(jax.vmap(root), a)
    assert report.decisions
    assert 0.3 < report.flipped < 0.9
    assert "decisions that flipped" in str(report)
