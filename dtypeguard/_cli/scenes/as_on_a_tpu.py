"""A difference on a TPU: distances of points, from squares and a product."""

import jax
import jax.numpy as jnp

import dtypeguard

CALL = "precision=Precision.HIGH"


def run(has_call):
    precision = jax.lax.Precision.HIGH if has_call else None

    def distances(x, y):
        squares = jnp.sum(x**2, 1)[:, None] + jnp.sum(y**2, 1)
        return squares - 2 * jnp.matmul(x, y.T, precision=precision)

    x = 4 + jax.random.normal(jax.random.key(0), (16, 8))
    y = 4 + jax.random.normal(jax.random.key(1), (16, 8))
    report = dtypeguard.audit_precision(distances, x, y, matmul_precision="tpu")
    assert report.error < 1e-3 or not has_call, report
    return f"{100 * report.error:.2g}% off.\n{report}"
