"""Optimizers whose state is one leaf, and params that are one leaf."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class State(NamedTuple):
    """One leaf."""

    leaf: Any


def one_leaf(leaf, change):
    return optax.GradientTransformation(
        lambda params: State(leaf(params)),
        lambda updates, state, params=None: (updates, State(change(state.leaf))),
    )


def counter(params):
    return jnp.zeros((), jnp.int32)


def struct(dtype, shape=(3,)):
    return {"w": jax.ShapeDtypeStruct(shape, dtype)}
