"""Programs that JAX refuses for the type of an operand, after threads about such errors.

Each is called with what stands for `jax.jit`, so that it runs eagerly as well.
`# made: NAME` is on the line that gave the odd operand its type, and `# forced: NAME` on
that of the value that forced it, if there is one;
`# forced in jit: NAME` is found only there.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.dtypes import BF16, F32, I32
from tests.support.helpers import need

MEAN = np.zeros(3, np.float64)  # forced: numpy_in_64_bits


class Case(NamedTuple):
    """A program, and what the note has to say of its odd operand.

    Attributes:
        program: takes what stands for `jax.jit`.
        operand: the argument by its name, and its expression.
        type: of the operand.
        strict: whether implicit promotion is off.
        x64: whether 64 bits are on.
    """

    program: Callable
    operand: str
    type: str
    strict: bool
    x64: bool


CASES: dict[str, Case] = {}


def refused(operand, type, *, strict=False, x64=False):
    """Registers a program under its own name."""

    def register(program):
        CASES[program.__name__] = Case(program, operand, type, strict, x64)
        return program

    return register


@refused("update = step", "float32[3]")
def in_the_body_of_a_while_loop(jit):
    rate = jnp.asarray([1, 2, 3], F32)  # forced: in_the_body_of_a_while_loop

    def body(carry):
        n, trace = carry
        step = trace[0] * rate  # made: in_the_body_of_a_while_loop
        return n + 1, lax.dynamic_update_index_in_dim(trace, step, n, 0)

    run = lambda trace: lax.while_loop(lambda carry: carry[0] < 4, body, (0, trace))
    return jit(run)(jnp.ones((4, 3), BF16))


@refused("y = other", "float32[3]")
def in_a_branch(jit):
    @jit
    def choose(flag, x):
        other = jnp.linspace(0, 1, 3)  # made: in_a_branch
        return lax.cond(flag, lambda x: lax.mul(x, other), lambda x: x, x)

    return choose(True, jnp.ones(3, BF16))


@refused("y = fresh", "float32[3]", strict=True)
def strict_where(jit):
    @jit
    def keep(old):
        fresh = jnp.zeros(3)  # made: strict_where
        return jnp.where(old > 0, old, fresh)

    return keep(jnp.ones(3, BF16))


@refused("params['calls']", "int32[]")
def counter_among_the_params(jit):
    def loss(params, x):
        return jnp.sum(params["w"] * x)

    calls = jnp.zeros((), I32)  # made: counter_among_the_params
    params = {"w": jnp.ones(3), "calls": calls}
    x = jnp.ones(3)
    return jit(lambda x: jax.grad(loss)(params, x))(x)


@refused("y = centre", "float64[3]", x64=True)
def numpy_in_64_bits(jit):
    @jit
    def shifted(x):
        centre = jnp.asarray(MEAN)  # made: numpy_in_64_bits
        return lax.sub(x, centre)

    return shifted(jnp.ones(3, F32))


@refused("lhs = x", "float32[1,1,8,8]")
def convolution_of_equinox(jit):
    layer = eqx.nn.Conv2d(1, 2, 3, key=jax.random.key(0))
    layer = jax.tree_util.tree_map(lambda x: x.astype(BF16), layer)
    image = jnp.ones((1, 8, 8), F32)  # forced in jit: convolution_of_equinox
    return jax.jit(lambda image: layer(image))(image)  # made: convolution_of_equinox


@refused("y = self.scale", "float32[]")
def module_of_nnx(jit):
    nnx = need("flax.nnx")

    class Block(nnx.Module):
        def __init__(self):
            self.weight = nnx.Param(jnp.ones(3, BF16))
            self.scale = jnp.ones((), F32)  # made: module_of_nnx

        def __call__(self, x):
            return lax.mul(jnp.sum(x * self.weight[...]), self.scale)

    run = lambda block, x: block(x)
    return (nnx.jit(run) if jit is jax.jit else run)(Block(), jnp.ones(3, BF16))
