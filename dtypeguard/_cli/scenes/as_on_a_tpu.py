"""A difference on a TPU: distances of points, from squares and a product."""

import jax
import jax.numpy as jnp

import dtypeguard

CALL = "precision=Precision.HIGH"


def distances(x, y, precision=None):
    squares = jnp.sum(x**2, 1)[:, None] + jnp.sum(y**2, 1)
    return squares - 2 * jnp.matmul(x, y.T, precision=precision)


def audit(precision):
    x, y = (4 + jax.random.normal(jax.random.key(seed), (16, 8)) for seed in range(2))
    f = lambda x, y: distances(x, y, precision)
    return dtypeguard.audit_precision(f, x, y, matmul_precision="tpu")


def bare():
    return audit(None)


def guarded():
    report = audit(jax.lax.Precision.HIGH)
    assert report.error < 1e-3, report
    return report
