"""A Flax NNX model in float32 whose matrix products are computed in bfloat16.

`autocast` needs no change of the model: what is not a product stays in float32.

    python docs/examples/nnx_autocast.py
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import dtypeguard


class Model(nnx.Module):
    """Two layers with a normalization between them."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(8, 32, rngs=rngs)
        self.norm = nnx.LayerNorm(32, rngs=rngs)
        self.output = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x):
        """The prediction for each row."""
        return self.output(jnp.tanh(self.norm(self.hidden(x))))[:, 0]


def loss_of(model, x, y):
    """The mean squared error."""
    return jnp.mean((model(x) - y) ** 2)


@nnx.jit
def step(model, optimizer, x, y):
    """One step, whose forward and backward products are in bfloat16."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss_of_params(params, x, y):
        return loss_of(nnx.merge(graph, params, rest), x, y)

    value_and_grad = jax.value_and_grad(loss_of_params)
    loss, grads = dtypeguard.autocast(value_and_grad, jnp.bfloat16)(params, x, y)
    optimizer.update(model, grads)
    return loss


def train(steps=200):
    """Returns the model after the training, and the losses."""
    key = jax.random.key(0)
    x = jax.random.normal(key, (64, 8))
    y = jnp.sin(jnp.sum(x[:, :3], -1))
    model = Model(nnx.Rngs(0))
    opt = dtypeguard.guard(optax.adamw(1e-2))
    optimizer = nnx.Optimizer(model, opt, wrt=nnx.Param)
    losses = [float(step(model, optimizer, x, y)) for _ in range(steps)]
    return model, losses


if __name__ == "__main__":
    model, losses = train()
    kernel = model.hidden.kernel[...]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, params in {kernel.dtype}")
