"""Hamiltonian Monte Carlo by hand for a model of NumPyro's; after its `hmm` and `blr`."""

from sys import argv  # the name of a mistake to make, for `notes.py`

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax, random


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 2)).astype(np.float32)
    return x, (x @ np.ones(2, np.float32) > 0).astype(np.int32)


def log_density(theta, x, y):
    prior = dist.Normal(0.0, 1.0).log_prob(theta).sum()
    if "a tangent in float32" in argv:
        theta = clipped(theta.astype(jnp.bfloat16))
    return prior + dist.Bernoulli(logits=x @ theta).log_prob(y).sum()


@jax.custom_jvp
def clipped(x):
    return jnp.clip(x, -5, 5)


@clipped.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    slope = jnp.where(jnp.abs(x) < 5, 1.0, 0.0).astype(x.dtype)
    if "a tangent in float32" in argv:
        slope = jnp.where(jnp.abs(x) < 5, jnp.float32(1), 0.0)  # the mistake
    return clipped(x), slope * t


def leapfrog(position, momentum, step_size, gradient):
    momentum = momentum + 0.5 * step_size * gradient(position)
    position = clipped(position + step_size * momentum)
    return position, momentum + 0.5 * step_size * gradient(position)


def kernel(density, step_size):
    gradient = jax.grad(density)

    def one(position, key):
        key, accept_key = random.split(key)
        momentum = random.normal(key, position.shape, position.dtype)
        body = lambda _, pair: leapfrog(*pair, step_size, gradient)
        new, moved = lax.fori_loop(0, 3, body, (position, momentum))
        energy = lambda q, p: density(q) - 0.5 * p @ p
        ratio = energy(new, moved) - energy(position, momentum)
        accept = jnp.log(random.uniform(accept_key)) < ratio
        return jnp.where(accept, new, position), accept

    return one


def moments(draws):
    mean = jnp.zeros(2)
    if "a mean that begins as ints" in argv:
        mean = jnp.zeros(2, int)  # the mistake
    start = (0, mean, jnp.zeros(2))

    def welford(state, x):
        count, mean, m2 = state
        count = count + 1
        delta = x - mean
        mean = mean + delta / count
        return (count, mean, m2 + delta * (x - mean)), None

    return lax.scan(welford, start, draws)[0]


x, y = data()
density = lambda theta: log_density(theta, x, y)
start = jnp.zeros(2, jnp.float32)
if "labels that are the params" in argv:
    start = jnp.zeros(2, int)  # the mistake
step_size = 0.1
if "a step size in float64 in x64" in argv:
    step_size = np.linspace(0.1, 0.2, 2)[0]  # the mistake
draws = []
sample = jax.jit(kernel(density, step_size))
for number in range(3):
    start, accept = sample(start, random.key(number))
    draws.append(start)
print(moments(jnp.stack(draws)))
