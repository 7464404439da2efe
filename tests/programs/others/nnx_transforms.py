"""A stack of blocks scanned over layers; after Flax's `nnx_toy_examples` 02 and 06."""

from sys import argv  # the name of a mistake to make, for `notes.py`

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
        self.activation = lambda x: nnx.relu(x)

    def __call__(self, x):
        y = self.activation(self.norm(self.linear(x)))
        if "a block in bfloat16 in a scan" in argv:
            y = y.astype(jnp.bfloat16)  # the mistake
        return y


class Model(nnx.Module):
    def __init__(self, width, layers, rngs):
        make = nnx.vmap(lambda rngs: Block(width, rngs))
        self.count = Count(jnp.zeros((), jnp.uint32))
        self.blocks = make(rngs.split(layers))
        self.head = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x):
        if "a count that becomes a float" in argv:
            self.count.set_value(self.count[...] + 1.0)  # the mistake
        else:
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
    if "a last batch that is shorter" in argv:
        x = x[: 4 - number // 2]  # the mistake
    return x, x.sum(1)


model = Model(4, 2, nnx.Rngs(0))
transformation = optax.sgd(0.1)
optimizer = nnx.Optimizer(model, transformation, wrt=nnx.Param)
for number in range(3):
    x, y = batch(number)
    if "an optimizer that is made anew" in argv:
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)  # the mistake
    if "a model that is made anew" in argv:
        model = Model(4, 2, nnx.Rngs(0))  # the mistake
        optimizer = nnx.Optimizer(model, transformation, wrt=nnx.Param)
    train_step(model, optimizer, x, y)
