"""Steps with one drift each, whose lines are marked as in `planted`."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dtypeguard import explain
from tests.support import planted
from tests.support.dtypes import BF16, F32, I32

RECORDED = contextlib.ExitStack()  # until the end of this file
RECORDED.enter_context(explain())


class Case(NamedTuple):
    """What is planted, how it is called, and what of its carry drifts."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    path: str
    before: str
    after: str
    options: dict[str, Any]


CASES: dict[str, Case] = {}


def struct(dtype, *shape):
    """An array of a dtype, a vector by default, that is never made."""
    return jax.ShapeDtypeStruct(shape or (3,), dtype)


def number(dtype):
    """A scalar of a dtype."""
    return jax.ShapeDtypeStruct((), dtype)


def drift(path, before, after, *args, **options):
    """Registers the step below it, with its arguments."""

    def register(step):
        CASES[step.__name__] = Case(step, args, path, before, after, options)
        return step

    return register


class Train(NamedTuple):
    """What a train step carries."""

    params: Any
    ema: Any


FIRST = Train({"w": struct(BF16)}, {"w": struct(BF16)})


@drift("state.ema['w']", "bfloat16", "float32", FIRST, struct(BF16))
def average_of_the_weights(state, x):
    grads = jax.grad(lambda p: jnp.sum((p["w"] * x) ** 2))(state.params)
    params = optax.apply_updates(state.params, grads)
    ema = jax.tree_util.tree_map(
        lambda e, p: (
            0.99 * e  # promotion: average_of_the_weights
            + 0.01 * p.astype(F32)  # operand: average_of_the_weights
        ),
        state.ema,
        params,
    )
    return Train(params, ema), 0.0


@drift("carry[3]", "int32", "float32", ({"w": struct(BF16)}, (), 0.5, number(I32)))
def counter_that_becomes_a_float(carry):
    params, opt_state, rate, n = carry
    n = n + 1.0  # promotion: counter_that_becomes_a_float
    return params, opt_state, rate, n


@drift("x", "bfloat16", "float32", struct(BF16), 3)
@functools.partial(jax.jit, static_argnums=1)
def static_argument_of_a_jit(x, size):
    wide = jnp.linspace(0, 1, size)  # operand: static_argument_of_a_jit
    return x * wide  # promotion: static_argument_of_a_jit


class Dense(eqx.Module):
    """A module that is a step of its own and carries itself."""

    weight: Any
    calls: Any

    def __call__(self, x):
        """A step of a module."""
        gate = jax.nn.sigmoid(jnp.zeros((), F32))  # operand: method_of_a_module
        weight = self.weight * gate  # promotion: method_of_a_module
        return Dense(weight, self.calls + 1), x


@drift("module.weight", "bfloat16", "float32", Dense(struct(BF16), number(I32)), 1.0)
def method_of_a_module(module, x):
    return module(x)


class Environment:
    """An environment with a method for its step, as brax and gymnax have them."""

    def __init__(self, dt):
        self.dt = dt  # operand: method_of_an_environment

    def method_of_an_environment(self, key, state, action):
        """Gives the observation first and the state second."""
        position, time = state
        velocity = self.dt * action
        position = position + velocity  # promotion: method_of_an_environment
        return position[:1], (position, time + 1)


ENVIRONMENT = Environment(np.float32(0.05))
ARGS = struct(jnp.uint32, 2), (struct(BF16), number(I32)), struct(BF16)
PLACES = {"carry": 1, "returned": 1}
drift("state[0]", "bfloat16", "float32", *ARGS, **PLACES)(
    ENVIRONMENT.method_of_an_environment
)


@drift("done", "bool", "float32", number(bool), struct(F32))
def flag_that_becomes_a_float(done, x):
    return jnp.where(x[0] > 1, 1.0, 0.0)  # promotion: flag_that_becomes_a_float


def _closing_over():
    table = jnp.arange(3) / 2  # operand: closure_constant

    def closure_constant(x):
        return x * table  # promotion: closure_constant

    return closure_constant


drift("x", "bfloat16", "float32", struct(BF16))(_closing_over())


@drift("count", "int32", "int64", number(I32), struct(F32), x64=True)
def x64_argmax(count, x):
    best = jnp.argmax(x)  # operand: x64_argmax
    return count + best  # promotion: x64_argmax


@drift("x", "bfloat16", "float32", struct(BF16))
def under_vmap(x):
    wide = jnp.ones(3, F32)  # operand: under_vmap
    return jax.vmap(lambda a, b: a * b)(x, wide)  # promotion: under_vmap


@drift("state[1]", "float32", "float32 (weak)", (struct(F32), number(F32)))
def time_that_becomes_weak(state):
    x, time = state
    time = jnp.where(x[0] > 0, 0.0, 1.0)  # promotion: time_that_becomes_weak
    return x, time


@drift("x", "bfloat16", "float32", struct(BF16), number(I32))
def weak_beside_ones(x, n):
    rate = 1 / (n + 1.0)
    return x - rate * jnp.ones(3)  # promotion: weak_beside_ones # operand: weak_beside_ones


marked = functools.partial(planted.marked, file=__file__)
assert_told = functools.partial(planted.assert_told, file=__file__)

RECORDED.close()
