"""Variational inference with `jax.example_libraries`; after `examples/advi.py` of JAX."""

from functools import partial

import jax.numpy as jnp
from jax import grad, jit, lax, random, vmap
from jax.example_libraries import optimizers
from jax.scipy.stats import norm

SAMPLES = 4


def sample(rng, mean, log_std):
    noise = random.normal(rng, mean.shape)
    return mean + jnp.exp(log_std) * noise


def elbo(logprob, rng, mean, log_std):
    x = sample(rng, mean, log_std)
    return logprob(x) - jnp.sum(norm.logpdf(x, mean, jnp.exp(log_std)))


def funnel(x):
    scale = 1.35
    return norm.logpdf(x[0], 0, jnp.exp(x[1])) + norm.logpdf(x[1], 0, scale)


def objective(params, t):
    rngs = random.split(random.key(t), SAMPLES)
    return -jnp.mean(vmap(partial(elbo, funnel), (0, None, None))(rngs, *params))


opt_init, opt_update, get_params = optimizers.momentum(step_size=0.1, mass=0.9)


@jit
def update(i, state):
    gradient = grad(objective)(get_params(state), i)
    return opt_update(i, gradient, state)


@jit
def smoothed(losses):
    def body(average, loss):
        average = 0.9 * average + 0.1 * loss
        return average, average

    start = jnp.zeros(())
    return lax.scan(body, start, losses)[1]


dtype = jnp.float32
state = opt_init((jnp.zeros(2, dtype), jnp.zeros(2, dtype)))
losses = []
for t in range(3):
    state = update(jnp.asarray(t), state)
    losses.append(objective(get_params(state), t))
print(smoothed(jnp.stack(losses)))
