"""A neural ODE in Equinox: the midpoint rule in a loop, trained until it is good enough."""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

POINTS, SUBSTEPS, STEPS = 6, 2, 15


class Field(eqx.Module):
    mlp: eqx.nn.MLP
    damping: float

    def __call__(self, y):
        return self.mlp(y) - self.damping * y


def data():
    """Where a damped pendulum is at some times."""
    times = np.linspace(0.0, 2.0, POINTS)
    wave = np.exp(-0.2 * times)
    return times, np.stack([wave * np.cos(2 * times), -wave * np.sin(2 * times)], 1)


def train(dtype=jnp.float32, opt=lambda opt: opt, step=lambda step, **options: step):
    """Trains in one `while_loop`.

    Returns:
        The losses, the first carry and the last, and how often training was traced.
    """
    times, positions = data()
    dt = jnp.asarray(times[1] / SUBSTEPS, dtype)
    positions = jnp.asarray(positions, dtype)
    mlp = eqx.nn.MLP(2, 2, 6, 1, activation=jnp.tanh, dtype=dtype, key=jax.random.key(0))
    params, static = eqx.partition(Field(mlp, 0.2), eqx.is_inexact_array)
    optim = opt(optax.chain(optax.adaptive_grad_clip(1.0), optax.adabelief(0.02)))
    traces = []

    def solve(field, y):
        def midpoint(y):
            half = y + dt / 2 * field(y)
            return y + dt * field(half)

        def to_next_point(y, _):
            substep = lambda y, _: (midpoint(y), None)
            y, _ = eqxi.scan(step(substep), y, None, SUBSTEPS, kind="checkpointed")
            return y, y

        return lax.scan(step(to_next_point), y, None, POINTS - 1)[1]

    def loss_fn(params):
        solution = solve(eqx.combine(params, static), positions[0])
        return jnp.mean((solution - positions[1:]) ** 2)

    def is_unfinished(carry):
        _, _, losses, n = carry
        return (n < STEPS) & (losses[n - 1] > 1e-4)

    def make_step(carry):
        params, opt_state, losses, n = carry
        loss, grads = eqx.filter_value_and_grad(loss_fn)(params)
        updates, opt_state = optim.update(grads, opt_state, params)
        params = eqx.apply_updates(params, updates)
        return params, opt_state, losses.at[n].set(loss), n + 1

    @eqx.filter_jit
    @step
    def fit(carry):
        traces.append(carry)
        return lax.while_loop(is_unfinished, step(make_step), carry)

    losses = jnp.full(STEPS, jnp.inf, dtype)
    first = params, optim.init(params), losses, 0
    last = fit(first)
    return np.asarray(last[2], np.float32).tolist(), first, last, len(traces)
