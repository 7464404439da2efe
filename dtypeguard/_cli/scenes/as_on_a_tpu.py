"""A difference on a TPU: distances of points, from squares and a product."""

import jax
import jax.numpy as jnp

import dtypeguard

CALL = "precision=Precision.HIGH"


def distances(x, y, precision=None):
    squares = jnp.sum(x**2, 1)[:, None] + jnp.sum(y**2, 1)
    return squares - 2 * jnp.matmul(x, y.T, precision=precision)


def audit(precision):
    x = 4 + jax.random.normal(jax.random.key(0), (16, 8))
    y = 4 + jax.random.normal(jax.random.key(1), (16, 8))
    return dtypeguard.audit_precision(
        lambda x, y: distances(x, y, precision), x, y, matmul_precision="tpu"
    )


def bare():
    return audit(None)


def guarded():
    report = audit(jax.lax.Precision.HIGH)
    assert report.error < 1e-3, report
    return report
