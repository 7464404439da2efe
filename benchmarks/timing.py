"""What the benchmarks share: two sides timed in turn, in one process."""

import statistics
import time

import jax
import jax.numpy as jnp
import jaxlib
import optax

import dtypeguard


def ratio(bare, ours, rounds):
    """How much longer our side takes, and the milliseconds of the bare one.

    Both are functions without arguments, called once to warm up and then in turn, every
    output waited for; each side goes first in every second round.

    Returns:
        The median, over rounds, of the ratio within a round; and the median time.
    """
    [seconds(side) for side in (bare, ours)]
    pairs = []
    for number in range(rounds):
        first = seconds(bare) if number % 2 else None
        second = seconds(ours)
        pairs.append((seconds(bare) if first is None else first, second))
    milliseconds = 1e3 * statistics.median(b for b, _ in pairs)
    return statistics.median(o / b for b, o in pairs), milliseconds


def seconds(function):
    """How long a function without arguments takes, its outputs waited for."""
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


def temporary_bytes(compiled):
    """What a compiled program takes besides its arguments and results."""
    analysis = compiled.memory_analysis()
    assert analysis is not None, "XLA has no analysis of memory for this device"
    return analysis.temp_size_in_bytes


def setting():
    """The device and the versions, in a line."""
    device = jax.devices()[0]
    versions = [f"{m.__name__} {m.__version__}" for m in (jax, jaxlib, optax, dtypeguard)]
    return f"{device.platform} ({device.device_kind}), {', '.join(versions)}"


def problem(leaves, side, dtype=jnp.float32):
    """Params and gradients: lists of so many square matrices."""
    keys = jax.random.split(jax.random.key(0), 2 * leaves)
    drawn = [(jax.random.normal(key, (side, side)) * 0.02).astype(dtype) for key in keys]
    return drawn[:leaves], drawn[leaves:]


class Training:
    """A jitted train step that is given its params and state, and the buffers it takes.

    A call takes a step, always with the same gradients, or with some that it makes of the
    params. The params and the state go in and come out in one order: JAX pairs donated
    buffers with outputs in order.
    """

    def __init__(self, opt, params, grads=None):
        def step(params, state, grads):
            if grads is None:
                make = lambda p: p * jnp.asarray(0.01, p.dtype)
                grads = jax.tree_util.tree_map(make, params)
            updates, state = opt.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        step = jax.jit(step, donate_argnums=(0, 1))
        # Buffers of its own: the next side takes the same params.
        params = jax.tree_util.tree_map(lambda p: p.copy(), params)
        self.carry = params, jax.jit(opt.init)(params)
        self.state_bytes = size(self.carry[1])
        self.step = step.lower(*self.carry, grads).compile()
        self.temporary_bytes = temporary_bytes(self.step)
        self.grads = grads

    def __call__(self):
        self.carry = self.step(*self.carry, self.grads)
        return self.carry


def size(tree):
    """The bytes of all the arrays of a tree."""
    return sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(tree))
