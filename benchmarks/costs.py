"""What guarded jitted steps and audits cost: `python benchmarks/costs.py`, a minute.

Guarded over bare, and an audit over `jax.make_jaxpr`, in one process, the two sides
interleaved after a warm-up. A ratio is that of the least times.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from timing import setting

from dtypeguard import audit_step, guard_step


def least(bare, ours, rounds):
    """How much longer our side takes at its best, and the least time of the bare one."""
    times = [], []
    for _ in range(rounds):
        for found, side in zip(times, (bare, ours)):
            start = time.perf_counter()
            side()
            found.append(time.perf_counter() - start)
    bare, ours = map(min, times)
    return ours / bare, bare


def calls():
    print("\na call of guard_step(jax.jit(step)), the carry a dict of small arrays")
    for name, leaves, first in (
        ("strong", 1, jnp.ones(4)),
        ("strong", 10, jnp.ones(4)),
        ("strong", 100, jnp.ones(4)),
        ("strong", 1000, jnp.ones(4)),
        ("stays weak", 1, 1.0),
        ("stays weak", 10, 1.0),
    ):
        step = jax.jit(lambda state: {name: leaf * 2 for name, leaf in state.items()})
        guarded, turns = guard_step(step), max(1, 200 // leaves)
        carry = {f"p{number:04}": first for number in range(leaves)}
        for _ in range(3):
            carry = guarded(step(carry))

        def run(step, carry=carry, turns=turns):
            for _ in range(turns):
                carry = step(carry)

        times, bare = least(lambda s=step: run(s), lambda g=guarded: run(g), 300)
        each = 1e6 * bare / turns
        print(f"  {name:<10} {leaves:>5} leaves  {times:.2f}   ({each:.1f} us bare)")


def layers(count, dtype):
    """A step of many weights, which drift if the input is wider."""

    def step(weights, x):
        new, hidden = [], x
        for weight in weights:
            hidden = jnp.tanh(hidden @ weight)
            new.append(weight - 0.1 * (hidden.T @ hidden))
        return new

    weights = [jax.ShapeDtypeStruct((4, 4), jnp.bfloat16)] * count
    return step, (weights, jax.ShapeDtypeStruct((4, 4), dtype))


def decayed(count):
    """A step of many weights, which drift by a constant that the step closes over."""
    step, (weights, x) = layers(count, jnp.bfloat16)
    decay = np.float32(0.9)
    return lambda weights, x: [decay * new for new in step(weights, x)], (weights, x)


def nested(levels):
    """Jitted functions, each of which calls the next one twice."""
    function = lambda carry, x: carry + x
    for _ in range(levels):
        function = jax.jit(lambda c, x, inner=function: inner(inner(c, x), x))
    types = [jax.ShapeDtypeStruct((3,), dtype) for dtype in (jnp.bfloat16, jnp.float32)]
    return function, types


def audits():
    print("\naudit_step over make_jaxpr")

    def traced(trace: Callable, step: Callable, args: tuple):
        jax.clear_caches()
        trace(lambda *args: step(*args), *args)  # a new function: JAX keeps its traces

    make = lambda step, *args: jax.make_jaxpr(step)(*args)
    for name, (step, args) in {
        "50 weights, none drifts": layers(50, jnp.bfloat16),
        "50 weights, all drift": layers(50, jnp.float32),
        "400 weights, none drifts": layers(400, jnp.bfloat16),
        "400 weights, all drift": layers(400, jnp.float32),
        "50 weights, a constant": decayed(50),
        "400 weights, a constant": decayed(400),
        "jit in jit, 8 levels": nested(8),
        "jit in jit, 13 levels": nested(13),
    }.items():
        sides = [lambda t=t, s=step, a=args: traced(t, s, a) for t in (make, audit_step)]
        times, bare = least(sides[0], sides[1], 5)
        print(f"  {name:<25} {times:.1f}   ({1e3 * bare:.0f} ms make_jaxpr)")


if __name__ == "__main__":
    print(setting())
    calls()
    audits()
