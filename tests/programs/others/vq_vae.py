"""A VQ-VAE with a straight-through gradient; after Haiku's `vqvae_example` and `vae`."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

CODES, WIDTH, DECAY = 8, 4, 0.99


def nearest(x, table):
    distance = jnp.sum((x[:, None] - table[None]) ** 2, -1)
    return jnp.argmin(distance, -1)


@jax.custom_vjp
def quantize(x, table):
    return table[nearest(x, table)]


def forward(x, table):
    index = nearest(x, table)
    return table[index], (index, table)


def backward(saved, cotangent):
    index, table = saved
    to_table = jnp.zeros_like(table).at[index].add(cotangent)
    return cotangent, to_table


quantize.defvjp(forward, backward)


def autoencode(image, table):
    x = hk.Linear(WIDTH)(image)
    codes = quantize(x, table)
    return hk.Linear(image.shape[-1])(codes), x


model = hk.without_apply_rng(hk.transform(autoencode))
optimizer = optax.adam(1e-3)


def loss_fn(params, table, image):
    out, x = model.apply(params, image, table)
    return jnp.mean((out - image) ** 2), x


@jax.jit
def update(params, table, state, image):
    grads, x = jax.grad(loss_fn, has_aux=True)(params, table, image)
    updates, state = optimizer.update(grads, state)
    used = jax.nn.one_hot(nearest(x, table), CODES)
    mean = used.T @ x / (used.sum(0)[:, None] + 1e-3)
    table = DECAY * table + (1 - DECAY) * mean
    return optax.apply_updates(params, updates), table, state


def images():
    while True:
        yield jnp.asarray(np.linspace(0, 1, 12).reshape(2, 6), jnp.float32)


batches = images()
key = jax.random.key(0)
table = jax.random.normal(key, (CODES, WIDTH))
params = model.init(key, next(batches), table)
state = optimizer.init(params)
for _ in range(3):
    params, table, state = update(params, table, state, next(batches))
jax.grad(lambda t: loss_fn(params, t, next(batches))[0])(table)
