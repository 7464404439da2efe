"""Gaussian process regression; after `examples/gaussian_process_regression.py` of JAX."""

from sys import argv  # the name of a mistake to make, for `notes.py`

import jax
import jax.numpy as jnp
from jax import grad, jit, random
from jax.scipy.linalg import cho_solve, cholesky, solve_triangular

KEY = random.key(0)


def data(n):
    dtype = jnp.float32
    if "data in bfloat16 for LAPACK" in argv:
        dtype = jnp.bfloat16  # the mistake
    x = random.uniform(KEY, (n, 1), dtype) * 4
    noise = 0.1 * random.normal(KEY, (n,), dtype)
    return x, jnp.sin(x[:, 0]) + noise


def squared_exponential(params, x1, x2):
    distance = jnp.sum((x1 / params["length"] - x2 / params["length"]) ** 2)
    return params["amplitude"] * jnp.exp(-distance)


def covariance(params, xs, ys):
    row = lambda x: jax.vmap(lambda y: squared_exponential(params, x, y))(ys)
    return jax.vmap(row)(xs)


def evidence(params, x, y):
    jitter = 1e-3 * jnp.eye(x.shape[0], dtype=x.dtype)
    kernel = covariance(params, x, x) + jitter
    chol = cholesky(kernel, lower=True)
    alpha = solve_triangular(chol, y, lower=True)
    return 0.5 * jnp.sum(alpha**2) + jnp.sum(jnp.log(jnp.diag(chol)))


@jit
def step(params, momentum, x, y):
    grads = grad(evidence)(params, x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum), momentum


def predict(params, x, y, new):
    kernel = covariance(params, x, x) + 1e-2 * jnp.eye(x.shape[0])
    if "a kernel cast for LAPACK" in argv:
        kernel = kernel.astype(jnp.float16)  # the mistake
    weights = cho_solve((jnp.linalg.cholesky(kernel), True), y)
    return covariance(params, new, x) @ weights


x, y = data(6)
params = {"amplitude": jnp.ones((), x.dtype), "length": jnp.ones((), x.dtype)}
momentum = jax.tree.map(jnp.zeros_like, params)
if "momentum that begins as numbers" in argv:
    momentum = jax.tree.map(lambda p: 0.0, params)  # the mistake
for _ in range(3):
    params, momentum = step(params, momentum, x, y)
print(predict(params, x, y, jnp.linspace(0, 4, 3)[:, None]))
