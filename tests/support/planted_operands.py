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
import optax
from jax import lax

BF16, F32 = jnp.bfloat16, jnp.float32
MEAN = np.zeros(3, np.float64)  # forced: numpy_in_64_bits


class Case(NamedTuple):
    """A program that takes what stands for `jax.jit`, its operand and the type of that."""

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


@refused("update", "float32[1,3]")
def key_value_cache(jit):
    @jit
    def write(cache, key):
        angle = jnp.arange(3, dtype=F32)  # forced: key_value_cache
        new = key * jnp.cos(angle)  # made: key_value_cache
        return lax.dynamic_update_slice(cache, new[None], (2, 0))

    return write(jnp.zeros((8, 3), BF16), jnp.ones(3, BF16))


@refused("update = step", "float32[3]")
def in_the_body_of_a_while_loop(jit):
    rate = jnp.asarray([1, 2, 3], F32)  # forced: in_the_body_of_a_while_loop

    def body(carry):
        n, trace = carry
        step = trace[0] * rate  # made: in_the_body_of_a_while_loop
        return n + 1, lax.dynamic_update_index_in_dim(trace, step, n, 0)

    run = lambda trace: lax.while_loop(lambda carry: carry[0] < 4, body, (0, trace))
    return jit(run)(jnp.ones((4, 3), BF16))


@refused("y = fresh", "float32[3]", strict=True)
def strict_where(jit):
    @jit
    def keep(old):
        fresh = jnp.zeros(3)  # made: strict_where
        return jnp.where(old > 0, old, fresh)

    return keep(jnp.ones(3, BF16))


@refused("x = three", "int32[]")
def gradient_in_an_int(jit):
    square = lambda x: x**2.0
    three = jnp.asarray(3)  # made: gradient_in_an_int
    return jit(jax.grad(square))(three)


@refused("params['calls']", "int32[]")
def counter_among_the_params(jit):
    def loss(params, x):
        return jnp.sum(params["w"] * x)

    calls = jnp.zeros((), jnp.int32)  # made: counter_among_the_params
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


@refused("g", "float32[3]", strict=True)
def strict_optimizer(jit):
    opt = optax.trace(0.9)
    params = {"w": jnp.ones(3, BF16)}
    state = opt.init(params)

    @jit
    def step(grads, state):
        return opt.update(grads, state)

    grads = {"w": jnp.ones(3, F32)}  # made: strict_optimizer
    return step(grads, state)


@refused("y = self.scale", "float32[]")
def field_of_an_object(jit):
    class Trainer:
        def __init__(self):
            self.scale = jnp.asarray(2.0, F32)  # made: field_of_an_object

        def loss(self, w):
            return lax.mul(jnp.sum(w), self.scale)

    return jit(jax.grad(Trainer().loss))(jnp.ones(3, BF16))


@refused("b", "float32[3]", strict=True)
def strict_addition(jit):
    @jit
    def add(a):
        b = jnp.ones(3, F32)  # made: strict_addition
        return a + b

    return add(jnp.ones(3, BF16))
