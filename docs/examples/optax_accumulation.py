"""A two-layer network in bfloat16, with the gradients of four mini-batches a step.

Adam computes in float32 and stores in bfloat16 with stochastic rounding; `multi_steps` sums
the gradients in float32 and runs Adam on every fourth call alone.

    python docs/examples/optax_accumulation.py
"""

import functools

import jax
import jax.numpy as jnp
import optax

import dtypeguard

MINI_STEPS = 4

policy = dtypeguard.Policy(
    compute_dtype=jnp.float32,
    state_dtype=jnp.bfloat16,
    updates_dtype=jnp.float32,  # `apply_updates` rounds the sum, not the step
    rounding="stochastic",
)
adam = dtypeguard.guard(optax.adam(1e-2), policy=policy)
opt = dtypeguard.multi_steps(adam, MINI_STEPS)


def init(key, width=32):
    """Params in bfloat16."""
    first, second = jax.random.split(key)
    params = {
        "hidden": jax.random.normal(first, (8, width)) / 8**0.5,
        "output": jax.random.normal(second, (width, 1)) / width**0.5,
    }
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)


def loss_of(params, x, y):
    """The mean squared error, summed in float32."""
    hidden = jnp.tanh(x @ params["hidden"])
    errors = (hidden @ params["output"])[:, 0].astype(jnp.float32) - y
    return jnp.mean(errors**2)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def mini_step(params, state, x, y, key):
    """One mini-batch: every fourth one moves the params."""
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    updates, state = opt.update(grads, state, params)
    return dtypeguard.apply_updates(params, updates, key=key), state, loss


def train(steps=400):
    """Returns params and state after the training, and the losses of the mini-steps."""
    key = jax.random.key(0)
    inputs = jax.random.normal(jax.random.fold_in(key, 1), (256, 8), jnp.bfloat16)
    targets = jnp.sin(jnp.sum(inputs[:, :3].astype(jnp.float32), -1))
    params = init(jax.random.fold_in(key, 2))
    state = opt.init(params)
    losses = []
    for number in range(steps):
        rows = slice(number % 8 * 32, number % 8 * 32 + 32)
        step_key = jax.random.fold_in(key, number)
        batch = inputs[rows], targets[rows]
        params, state, loss = mini_step(params, state, *batch, step_key)
        losses.append(float(loss))
    return params, state, losses


if __name__ == "__main__":
    params, state, losses = train()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, params in {params['hidden'].dtype}")
