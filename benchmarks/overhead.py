"""What guards and audits cost: `python benchmarks/overhead.py`, three minutes on two cores.

Guarded over bare, and an audit over `jax.make_jaxpr`, in one process, the two sides
interleaved after a warm-up, every output waited for. A ratio is the median, over rounds, of
the ratio within a round.
"""

import functools
import pathlib
import statistics
import sys
import warnings
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from timing import ratio, setting

from dtypeguard import audit, guard, guard_step
from dtypeguard._leaves.compat import HAS_X64_SCOPE, set_x64

sys.path.append(str(pathlib.Path(__file__).parents[1]))

from tests.support.hlo import count_float64, optimized_hlo
from tests.support.optimizer_sweep import catalog


def problem(opt, leaves, side):
    """Jit-ready update functions, bare and guarded, and their arguments."""
    params = {
        f"p{number:04}": jnp.full((side, side), 0.5, jnp.float32)
        for number in range(leaves)
    }
    sides = [lambda *args, opt=o: opt.update(*args) for o in (opt, guard(opt))]
    return *sides, (params, guard(opt).init(params), params)


def step_time():
    print("\njitted update, 10 leaves of 512x512")
    for name in ("sgd", "adam", "adamw", "lion", "lamb"):
        bare, guarded, args = problem(getattr(optax, name)(1e-3), 10, 512)
        bare, guarded = (
            functools.partial(jax.jit(side), *args) for side in (bare, guarded)
        )
        times, bare_ms = ratio(bare, guarded, 41)
        print(f"  {name:<8} {times:.3f}   ({bare_ms:.2f} ms bare)")


def lowering_time():
    print("\nlowering (tracing included)")
    for name in ("sgd", "adam", "adamw"):
        for leaves in (10, 100, 1000):
            bare, guarded, args = problem(getattr(optax, name)(1e-3), leaves, 4)

            def lower(update, args=args):
                jax.clear_caches()
                # A new function each time: jit keeps what it has traced.
                jax.jit(lambda *args: update(*args)).lower(*args)

            bare, guarded = (functools.partial(lower, side) for side in (bare, guarded))
            times, bare_ms = ratio(bare, guarded, 7 if leaves == 1000 else 21)
            print(f"  {name:<8} {leaves:>5} leaves  {times:.3f}   ({bare_ms:.1f} ms bare)")


def eager_time():
    print("\neager update, leaves of 64x64")
    ratios = []
    for name in ("sgd", "adam", "adamw", "rmsprop", "lion"):
        for leaves in (10, 100):
            bare, guarded, args = problem(getattr(optax, name)(1e-3), leaves, 64)
            bare, guarded = (functools.partial(side, *args) for side in (bare, guarded))
            times, bare_ms = ratio(bare, guarded, 2010 // leaves)
            ratios.append(times)
            print(f"  {name:<8} {leaves:>5} leaves  {times:.3f}   ({bare_ms:.2f} ms bare)")
    print(f"  median   {statistics.median(ratios):.3f}")


def compilations():
    print("\ncompilations of a loop of 4 steps, bare -> guarded")
    params = {"w": jnp.linspace(0, 1, 8)}
    loss = lambda params: jnp.sum(params["w"] ** 2)

    def count(opt):
        def step(params, state):
            value, grads = jax.value_and_grad(loss)(params)
            extra = {"value": value, "grad": grads, "value_fn": loss}
            updates, state = opt.update(grads, state, params, **extra)
            return optax.apply_updates(params, updates), state

        carry, jitted = (params, opt.init(params)), cast(Any, jax.jit(step))
        for _ in range(4):
            carry = jitted(*carry)
        return jitted._cache_size()

    for name, opt in {
        "adam": optax.adam(1e-3),
        "lbfgs": optax.lbfgs(),
        "zoom line search": optax.scale_by_zoom_linesearch(5),
        "backtracking": optax.scale_by_backtracking_linesearch(5),
    }.items():
        bare = optax.with_extra_args_support(opt)
        print(f"  {name:<17} {count(bare)} -> {count(guard(bare))}")


def update(opt, extra_args, updates, state, params):
    return opt.update(updates, state, params, **extra_args)


def catalogue():
    entries, unbuilt = catalog.entries()
    identical, bare_wide, guarded_wide = 0, 0, 0
    for entry in entries:
        inputs = entry.inputs(jnp.float32, jnp.float32)
        for x64 in (False, True):
            with set_x64(x64):
                wrapped = guard(entry.build())
                args = (inputs.updates, wrapped.init(inputs.params), inputs.params)
                sides = [
                    functools.partial(update, opt, inputs.extra_args)
                    for opt in (entry.build(), wrapped)
                ]
                if x64:
                    bare, guarded = (count_float64(side, *args) for side in sides)
                    bare_wide, guarded_wide = bare_wide + bool(bare), guarded_wide + guarded
                else:
                    bare, guarded = (optimized_hlo(side, *args) for side in sides)
                    identical += bare == guarded
    print(f"\n{len(entries)} optimizers and transformations of optax, float32")
    for left_out, reason in unbuilt:
        print(f"  not among them: {left_out}: {reason}")
    print(
        f"  optimized HLO identical to the bare one, x64 off: {identical} of {len(entries)}"
    )
    print(f"  compute 64-bit floats under x64 bare: {bare_wide} of {len(entries)}")
    scope = "" if HAS_X64_SCOPE else "   (no scope before JAX 0.7)"
    print(f"  64-bit floating operations under x64 guarded: {guarded_wide}{scope}")


def step_calls():
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

        times, bare_ms = ratio(lambda s=step: run(s), lambda g=guarded: run(g), 300)
        each = 1e3 * bare_ms / turns
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
    print("\naudit of a step over make_jaxpr")

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
        sides = [lambda t=t, s=step, a=args: traced(t, s, a) for t in (make, audit)]
        times, bare_ms = ratio(sides[0], sides[1], 5)
        print(f"  {name:<25} {times:.1f}   ({bare_ms:.0f} ms make_jaxpr)")


def main():
    print(f"{setting()}. Guarded over bare:")
    step_time()
    lowering_time()
    eager_time()
    compilations()
    step_calls()
    audits()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        catalogue()


if __name__ == "__main__":
    main()
