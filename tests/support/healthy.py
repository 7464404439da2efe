"""A program whose roundings are spread over its lines: none stands out."""

import jax.numpy as jnp


def spread(x):
    w = x[:4]
    a = jnp.tanh(x @ w)
    b = jnp.tanh(x @ w.T)
    c = jnp.tanh(x @ w[::-1])
    d = jnp.tanh(x @ w[:, ::-1])
    e = jnp.tanh(x @ w.T[::-1])
    return a, b, c, d, e
