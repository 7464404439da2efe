"""Small optimizers: those whose state is one leaf, those that change nothing."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import tree_util

from dtypeguard import Policy
from tests.support.dtypes import BF16, F32

HUGE = jax.ShapeDtypeStruct((10**6, 10**6), BF16)  # which no memory holds
either_policy = pytest.mark.parametrize(
    "policy", [Policy(), Policy(compute_dtype=F32)], ids=str
)
PARAMS, NARROW = {"w": jnp.ones(3, F32)}, {"w": jnp.ones(3, BF16)}


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


def keep(updates, state, params=None, **extra_args):
    """An update that changes nothing."""
    return updates, state


def transformation(update=keep, init=lambda params: ()):
    return optax.GradientTransformationExtraArgs(init, update)


def dict_leaf(init, update):
    """A transformation of one state leaf: `update` maps (leaf, gradients) to a new leaf."""

    def update_fn(updates, state, params=None):
        return updates, {"leaf": update(state["leaf"], updates)}

    return optax.GradientTransformation(lambda params: {"leaf": init(params)}, update_fn)


def one_update(opt, params=None, grads=None):
    """The first state, and what one update makes of it."""
    params = PARAMS if params is None else params
    state = opt.init(params)
    return state, *opt.update(params if grads is None else grads, state, params)


def widen(dtype=F32):
    """Updates in a dtype."""
    return optax.stateless(
        lambda updates, _: tree_util.tree_map(lambda u: u.astype(dtype), updates)
    )
