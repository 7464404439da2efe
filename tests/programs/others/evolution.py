"""An evolution strategy in a scan; after the quickstart of `evosax` and `examples/es`."""

import dataclasses
from sys import argv  # the name of a mistake to make, for `notes.py`

import jax
import jax.numpy as jnp
from jax import lax, random

POPULATION, SIZE = 8, 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Strategy:
    mean: jax.Array
    sigma: jax.Array
    best: jax.Array
    rate: float = dataclasses.field(default=0.1, metadata={"static": True})


def ask(key, strategy):
    noise = random.normal(key, (POPULATION, SIZE), jnp.float32)
    if "a best in float64 in x64" in argv:
        noise = random.normal(key, (POPULATION, SIZE))  # the mistake
    return strategy.mean + strategy.sigma * noise


def ranks(fitness):
    order = jnp.argsort(jnp.argsort(fitness))
    return order / (POPULATION - 1) - 0.5


def tell(strategy, x, fitness):
    push = ranks(fitness) @ (x - strategy.mean)
    best = jnp.minimum(strategy.best, fitness.min())
    mean = strategy.mean - strategy.rate * push
    sigma = strategy.sigma * 0.99
    return dataclasses.replace(strategy, mean=mean, sigma=sigma, best=best)


def sphere(x):
    return jnp.sum(x**2, axis=-1)


@jax.jit
def generation(strategy, key):
    x = ask(key, strategy)
    return tell(strategy, x, sphere(x))


def run(strategy, key):
    def step(strategy, key):
        strategy = generation(strategy, key)
        return strategy, strategy.best

    return lax.scan(step, strategy, random.split(key, 4))


def restarted(strategy):
    fresh = lambda s: dataclasses.replace(s, sigma=jnp.ones((), s.sigma.dtype))
    if "a reset in bfloat16 in a branch" in argv:
        narrow = lambda: jnp.ones((), jnp.bfloat16)  # the mistake
        fresh = lambda s: dataclasses.replace(s, sigma=narrow())
    return lax.cond(strategy.sigma < 0.1, fresh, lambda s: s, strategy)


sigma = jnp.ones((), jnp.float32)
if "a sigma that begins as an int" in argv:
    sigma = jnp.ones((), int)  # the mistake
start = Strategy(jnp.zeros(SIZE, jnp.float32), sigma, jnp.asarray(jnp.inf, jnp.float32))
for epoch in range(3):
    if "a rate that is another constant each time" in argv:
        start = dataclasses.replace(start, rate=0.1 / (1 + epoch))  # the mistake
    start = generation(start, random.key(epoch))
strategy, best = jax.jit(run)(start, random.key(0))
restarted(strategy)
