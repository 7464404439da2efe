"""A small problem for optimizers of their own kind, trained in a scan."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util


def make_params(dtype=jnp.float32):
    """Two leaves, of 3 x 4 and of 4 entries."""
    # By NumPy: JAX keeps what it compiled, optimized or not, in a test before.
    w = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    return jax.device_put({"w": w.astype(dtype), "b": np.full(4, 0.5, dtype)})


def slope(params):
    """The gradient of a quadratic with its least at 0.25."""
    return tree_util.tree_map(lambda p: p - jnp.asarray(0.25, p.dtype), params)


def add(params, updates):
    """Fails, under strict promotion, where an update has another dtype than its param."""
    return tree_util.tree_map(lambda p, u: p + u, params, updates)


def run(opt, params, steps, grads_of=slope, state=None, add=add):
    """Params and state after so many steps, from a given or a first state."""

    def step(carry, _):
        params, state = carry
        updates, state = opt.update(grads_of(params), state, params)
        return (add(params, updates), state), None

    train = jax.jit(lambda carry: lax.scan(step, carry, None, length=steps)[0])
    return train((params, opt.init(params) if state is None else state))
