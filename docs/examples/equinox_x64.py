"""An Equinox model in float32, trained in a process that has x64 on for other work.

`guard` keeps Adam's state in float32; `guard_step` does the same for a step whose carry has
an average of the loss, which float64 targets would widen.

    python docs/examples/equinox_x64.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import dtypeguard

opt = dtypeguard.guard(optax.adam(1e-2))


def loss_of(model, x, y):
    """The mean squared error; the targets are float64, and so is the error."""
    return jnp.mean((jax.vmap(model)(x)[:, 0] - y) ** 2)


@dtypeguard.guard_step
def step(carry, batch):
    """Trains the model once; the average of the loss stays float32."""
    model, state, average = carry
    loss, grads = eqx.filter_value_and_grad(loss_of)(model, *batch)
    updates, state = opt.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
    model = eqx.apply_updates(model, updates)
    return (model, state, 0.9 * average + 0.1 * loss), loss


def train(steps=200):
    """Returns the carry after the training, and the losses."""
    with jax.enable_x64(True):
        inputs = np.random.default_rng(0).normal(size=(64, 4))
        x = jnp.asarray(inputs, jnp.float32)
        y = jnp.asarray(np.sin(inputs.sum(-1)))  # float64, as NumPy makes it
        key = jax.random.key(0)
        model = eqx.nn.MLP(4, 1, 16, 1, dtype=jnp.float32, key=key)
        state = opt.init(eqx.filter(model, eqx.is_inexact_array))
        carry = model, state, jnp.zeros((), jnp.float32)
        compiled, losses = eqx.filter_jit(step), []
        for _ in range(steps):
            carry, loss = compiled(carry, (x, y))
            losses.append(float(loss))
    return carry, losses


if __name__ == "__main__":
    (_, _, average), losses = train()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, its average in {average.dtype}")
