"""A stack of blocks scanned over layers; after Flax's `nnx_toy_examples` 02 and 06."""

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx


class Count(nnx.Variable):
    pass


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.linear = nnx.Linear(width, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.activation = nnx.relu

    def __call__(self, x):
        return self.activation(self.norm(self.linear(x)))


class Model(nnx.Module):
    def __init__(self, width, layers, rngs):
        make = nnx.vmap(lambda rngs: Block(width, rngs))
        self.count = Count(jnp.zeros((), jnp.uint32))
        self.blocks = make(rngs.split(layers))
        self.head = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x):
        self.count[...] = self.count[...] + 1

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def through(x, block):
            return block(x)

        return self.head(through(x, self.blocks))


def loss_fn(model, x, y):
    return jnp.mean((model(x)[..., 0] - y) ** 2)


@nnx.jit
def train_step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
    optimizer.update(model, grads)
    return loss


def batch(number):
    rng = np.random.default_rng(number)
    x = rng.uniform(size=(4, 4)).astype(np.float32)
    return x, x.sum(1)


model = Model(4, 2, nnx.Rngs(0))
transformation = optax.sgd(0.1)
optimizer = nnx.Optimizer(model, transformation, wrt=nnx.Param)
for number in range(3):
    x, y = batch(number)
    train_step(model, optimizer, x, y)
