"""Small optimizers: those whose state is one leaf, those that change nothing."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import tree_util

from dtypeguard._leaves.compat import x64_enabled


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


def noting(seen, init=lambda params: ()):
    """A transformation that changes nothing and notes the x64 flag at each update."""

    def update(updates, state, params=None, **extra_args):
        seen.append(x64_enabled())
        return updates, state

    return transformation(update, init)


def dict_leaf(init, update):
    """A transformation of one state leaf: `update` maps (leaf, gradients) to a new leaf."""

    def update_fn(updates, state, params=None):
        return updates, {"leaf": update(state["leaf"], updates)}

    return optax.GradientTransformation(lambda params: {"leaf": init(params)}, update_fn)


def one_update(opt, params=None, grads=None):
    """The first state, and what one update makes of it."""
    params = {"w": jnp.ones(3, jnp.float32)} if params is None else params
    state = opt.init(params)
    return state, *opt.update(params if grads is None else grads, state, params)


def whole_model():
    """An Equinox model in bfloat16, its arrays, and gradients of ones."""
    model = eqx.nn.MLP(2, 1, 4, 1, dtype=jnp.bfloat16, key=jax.random.key(0))
    params = eqx.filter(model, eqx.is_inexact_array)
    grads = tree_util.tree_map(jnp.ones_like, params)
    return model, params, grads


def widen(dtype=jnp.float32):
    """Updates in a dtype."""
    cast = lambda updates, _: tree_util.tree_map(lambda u: u.astype(dtype), updates)
    return optax.stateless(cast)
