"""A GAN in one scan: Haiku networks, two optimizers, a discriminator that may rest."""

from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

BATCH, NOISE, STEPS, CHUNKS = 8, 2, 8, 3


class Player(NamedTuple):
    params: hk.Params
    opt_state: optax.OptState


class GAN(NamedTuple):
    generator: Player
    discriminator: Player
    average: hk.Params
    margin: jax.Array
    rested: jax.Array
    key: jax.Array


def train(dtype=jnp.float32, opt=lambda opt: opt, step=lambda step, **options: step):
    """Learns a ring of points.

    Returns:
        The losses, the first carry and the last, and how often a chunk was traced.
    """
    traces = []
    generator = hk.without_apply_rng(hk.transform(lambda z: hk.nets.MLP([8, 2])(z)))
    discriminator = hk.without_apply_rng(
        hk.transform(lambda x: hk.nets.MLP([8, 1], activation=jax.nn.leaky_relu)(x)[:, 0])
    )
    optimizer = opt(optax.adam(5e-3, b1=0.5))

    def generate(params, key):
        return generator.apply(params, jax.random.normal(key, (BATCH, NOISE), dtype))

    def generator_loss(params, opponent, key):
        scores = discriminator.apply(opponent, generate(params, key))
        return jax.nn.softplus(-scores).mean()

    def discriminator_loss(params, opponent, real, key):
        fake = generate(opponent, key)
        scores = discriminator.apply(params, real), discriminator.apply(params, fake)
        loss = jax.nn.softplus(-scores[0]).mean() + jax.nn.softplus(scores[1]).mean()
        return loss, scores[0].mean() - scores[1].mean()

    def moved(player, grads):
        updates, opt_state = optimizer.update(grads, player.opt_state, player.params)
        return Player(optax.apply_updates(player.params, updates), opt_state)

    def step_gan(gan, real):
        key, first_key, second_key = jax.random.split(gan.key, 3)
        loss, grads = jax.value_and_grad(generator_loss)(
            gan.generator.params, gan.discriminator.params, first_key
        )
        generator = moved(gan.generator, grads)
        (_, margin), grads = jax.value_and_grad(discriminator_loss, has_aux=True)(
            gan.discriminator.params, generator.params, real, second_key
        )
        margin = 0.9 * gan.margin + 0.1 * margin
        rests = margin > 0.5
        discriminator = lax.cond(
            rests, lambda player, _: player, step(moved), gan.discriminator, grads
        )
        rate = 0.1
        average = jax.tree.map(
            lambda a, p: a + rate * (p - a), gan.average, generator.params
        )
        rested = gan.rested + rests
        return GAN(generator, discriminator, average, margin, rested, key), loss

    @jax.jit
    @step
    def chunk(gan, real):
        traces.append(real)
        return lax.scan(step(step_gan), gan, real)

    key, *keys = jax.random.split(jax.random.key(0), 3)
    angles = np.random.default_rng(0).uniform(0, 6.28, (CHUNKS, STEPS, BATCH))
    real = jnp.asarray(np.stack([np.cos(angles), np.sin(angles)], -1), dtype)
    params = jax.jit(generator.init)(keys[0], jnp.zeros((1, NOISE), dtype))
    opponent = jax.jit(discriminator.init)(keys[1], real[0, 0])
    first = gan = GAN(
        generator=Player(params, optimizer.init(params)),
        discriminator=Player(opponent, optimizer.init(opponent)),
        average=params,
        margin=jnp.zeros((), dtype),
        rested=jnp.array(0),
        key=key,
    )
    losses = []
    for n in range(CHUNKS):
        gan, losses_of_chunk = chunk(gan, real[n])
        losses += np.asarray(losses_of_chunk, np.float32).tolist()
    return losses, first, gan, len(traces)
