"""A helper in another file than the optimizers that drift because of it."""

import jax.numpy as jnp


def warmup(count):
    """A schedule that knows one dtype only."""
    steps = count.astype(jnp.float32)  # operand: helper_schedule
    return 1 - jnp.exp(-steps)


def scaled(leaf, scale):
    """A product, in the wider dtype of its factors."""
    return leaf * scale  # promotion: helper_promotes


def warming(count):
    """The same for a step."""
    steps = count.astype(jnp.float32)  # operand: rate_of_a_schedule
    return jnp.minimum(steps / 100, 1)
