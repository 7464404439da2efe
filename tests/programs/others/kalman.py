"""A Kalman filter and smoother; after those of probml's `JSL` and of `dynamax`."""

from sys import argv  # the name of a mistake to make, for `notes.py`
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Model(NamedTuple):
    F: jax.Array
    H: jax.Array
    Q: jax.Array
    R: jax.Array


class Belief(NamedTuple):
    mean: jax.Array
    cov: jax.Array
    log_likelihood: jax.Array


def model():
    if "a motion in float64 in x64" in argv:
        move = np.eye(4)  # the mistake
    else:
        move = np.eye(4, dtype=np.float32)
    move[0, 2] = move[1, 3] = 0.1
    see = jnp.eye(2, 4, dtype=jnp.float32)
    noise = 0.01 * jnp.eye(4, dtype=jnp.float32)
    spread = 0.1 * jnp.eye(2, dtype=jnp.float32)
    return Model(jnp.asarray(move), see, noise, spread)


def update(model, belief, y):
    mean, cov = model.F @ belief.mean, model.F @ belief.cov @ model.F.T + model.Q
    innovation = y - model.H @ mean
    spread = model.H @ cov @ model.H.T + model.R
    gain = jnp.linalg.solve(spread, model.H @ cov).T
    _, logdet = jnp.linalg.slogdet(spread)
    fit = innovation @ jnp.linalg.solve(spread, innovation)
    score = belief.log_likelihood - 0.5 * (fit + logdet)
    new = Belief(mean + gain @ innovation, cov - gain @ spread @ gain.T, score)
    return new, new


def observations(steps):
    rng = np.random.default_rng(0)
    walk = rng.normal(size=(steps, 2)).cumsum(0).astype(np.float32)
    return jnp.asarray(walk)


def filtered(model, ys):
    score = jnp.zeros((), jnp.float32)
    if "a score that begins as an int" in argv:
        score = jnp.zeros((), int)  # the mistake
    start = Belief(jnp.zeros(4, jnp.float32), jnp.eye(4, dtype=jnp.float32), score)
    return lax.scan(lambda belief, y: update(model, belief, y), start, ys)


def smoothed(model, beliefs):
    def back(later, belief):
        predicted = model.F @ belief.cov @ model.F.T + model.Q
        gain = jnp.linalg.solve(predicted, model.F @ belief.cov).T
        mean = belief.mean + gain @ (later - model.F @ belief.mean)
        return mean, mean

    last = beliefs.mean[-1]
    if "a last state in bfloat16" in argv:
        last = last.astype(jnp.bfloat16)  # the mistake
    return lax.scan(back, last, beliefs, reverse=True)[1]


_, beliefs = jax.jit(filtered)(model(), observations(5))
print(smoothed(model(), beliefs)[0])
