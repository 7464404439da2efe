"""Gradient accumulation beside what the memory allows: `python benchmarks/accumulation.py`.

Each side is a jitted train step that makes its gradients, its params and state donated.
Beside each other are a pass that accumulates and adds zeros to the params, a step of the
bare optimizer, a mini-step that emits nothing, one that emits, a whole gradient step beside
as many passes and a bare step, and `optax.MultiSteps`. A ratio is the median over rounds of
the ratio within a round. A share of the bandwidth compares the bytes that have to be read
and written, which are all that changes in a step, once each, with `x * c` in that round.
Temporary memory is what XLA sets aside for a step or mini-step, in copies of the params.
About two minutes on two cores.

    python benchmarks/accumulation.py             # all
    python benchmarks/accumulation.py adam lion   # the rows whose names begin so
    python benchmarks/accumulation.py lowering    # 1,000 leaves, traced and lowered
"""

import statistics
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import optax
from timing import Training, problem, seconds, setting, size

from dtypeguard import multi_steps, prodigy

# name: optimizer, leaves, side, dtype, k, rounds
ROWS = {
    "adam": (lambda: optax.adam(1e-3), 1, 4096, "float32", 4, 9),
    "adam, four leaves": (lambda: optax.adam(1e-3), 4, 1024, "float32", 16, 7),
    "adamw": (lambda: optax.adamw(1e-3), 1, 4096, "float32", 4, 7),
    "sgd": (lambda: optax.sgd(1e-3), 1, 4096, "float32", 4, 9),
    "lion": (lambda: optax.lion(1e-3), 1, 4096, "float32", 4, 9),
    "optax's prodigy": (optax.contrib.prodigy, 4, 1024, "float32", 16, 7),
    "dtypeguard.prodigy": (prodigy, 4, 1024, "float32", 16, 7),
    "muon": (lambda: optax.contrib.muon(1e-3), 4, 512, "float32", 16, 3),
    "adam, bfloat16": (lambda: optax.adam(1e-3), 1, 4096, "bfloat16", 4, 7),
    "lion, bfloat16": (lambda: optax.lion(1e-3), 1, 4096, "bfloat16", 4, 7),
    "dtypeguard.prodigy, bfloat16": (prodigy, 4, 1024, "bfloat16", 16, 7),
}
SIDES = "pass", "bare", "silent", "emitting"


def only_accumulate():
    """The least that a mini-step can do; that its updates are zeros XLA cannot know."""

    def init(params):
        return jax.tree_util.tree_map(lambda p: jnp.zeros(p.shape), params), jnp.zeros(())

    def update(updates, state, params=None):
        sums, zero = state
        add = lambda acc, grad: acc + (grad.astype(acc.dtype) - acc) / (2 + zero)
        sums = jax.tree_util.tree_map(add, sums, updates)
        # Zeros that wait for the sums: XLA would copy the params to have both at once.
        nothing = lambda p, acc: jnp.broadcast_to(zero * acc.ravel()[0], p.shape)
        zeros = jax.tree_util.tree_map(nothing, params, sums)
        return zeros, (sums, zero)

    return optax.GradientTransformation(init, update)


class Scaling:
    """`x * c` in place."""

    def __init__(self, params):
        self.arrays = [p + 0 for p in params]
        self.bytes = 2 * size(params)
        scale = lambda arrays: [x * jnp.asarray(1.001, x.dtype) for x in arrays]
        self.scale = jax.jit(scale, donate_argnums=0)

    def __call__(self):
        self.arrays = self.scale(self.arrays)
        return self.arrays


def second_time(sides):
    """The seconds of each in turn, after all of them once: the caches are as those left."""
    [seconds(side) for side in sides]
    return [seconds(side) for side in sides]


def one_round(scaling, accumulating, bare, ours, theirs, k):
    """The seconds of each thing.

    `least` is a gradient step in as many passes and a bare step, which finds its state as
    cold as the mini-step that emits finds it: untouched since k - 1 passes.
    """
    times = {"scaling": statistics.median(second_time([scaling] * k))}
    *passes, times["bare"] = second_time([accumulating] * (k - 1) + [bare])
    times["pass"] = statistics.median(passes)
    *silent, times["emitting"] = second_time([ours] * k)
    times["silent"] = statistics.median(silent)
    times["ours"] = sum(silent) + times["emitting"]
    times["least"] = sum(passes) + times["pass"] + times["bare"]
    return times | {"optax": sum(second_time([theirs] * k))}


def compare(name):
    make, leaves, side, dtype, k, rounds = ROWS[name]
    params, _ = problem(leaves, side, jnp.dtype(dtype))
    scaling = Scaling([p.astype(jnp.float32) for p in params])
    accumulating, bare, ours, theirs = [
        Training(opt, params)
        for opt in (
            only_accumulate(),
            make(),
            multi_steps(make(), k),
            optax.MultiSteps(make(), k),
        )
    ]
    every = [
        one_round(scaling, accumulating, bare, ours, theirs, k) for _ in range(rounds + 1)
    ][1:]
    ratio = lambda over, under: statistics.median(over(t) / under(t) for t in every)
    moved = {
        "pass": accumulating.state_bytes,
        "bare": bare.state_bytes,
        "silent": accumulating.state_bytes,
        "emitting": ours.state_bytes,
    }
    shares = [
        ratio(
            lambda t, s=s: 2 * (size(params) + moved[s]) / t[s],
            lambda t: scaling.bytes / t["scaling"],
        )
        for s in SIDES
    ]
    silent = ratio(lambda t: t["silent"], lambda t: t["pass"])
    emitting = ratio(lambda t: t["emitting"], lambda t: t["pass"] + t["bare"])
    least = ratio(lambda t: t["ours"], lambda t: t["least"])
    faster = ratio(lambda t: t["optax"], lambda t: t["ours"])
    milliseconds = [1e3 * statistics.median(t[s] for t in every) for s in ("optax", "ours")]
    copies = [t.temporary_bytes / size(params) for t in (bare, theirs, ours)]
    sizes = f"{name}, {leaves} x {side} x {side}"
    print(
        f"{sizes:<45} {k:>2} {silent:>6.2f} {emitting:>6.2f} {least:>6.2f}   "
        f"{'  '.join(f'{share:>4.0%}' for share in shares)}  "
        f"{faster:>5.1f}   {milliseconds[0]:>6.0f} -> {milliseconds[1]:<4.0f} "
        f"{copies[0]:>5.2f}, {copies[1]:.2f} -> {copies[2]:.2f}",
        flush=True,
    )


def lowering(leaves=1000, rounds=5):
    """How long tracing and lowering takes, ours over optax's, in processor time."""
    params = {f"w{i}": jnp.ones((4, 4)) for i in range(leaves)}

    def side(opt):
        state = opt.init(params)

        def lower():
            jax.clear_caches()
            start = time.process_time()
            step = lambda params, state, grads: opt.update(grads, state, params)
            jax.jit(step).lower(params, state, params)
            return time.process_time() - start

        return lower

    inner = optax.adam(1e-3)
    ours, theirs = side(multi_steps(inner, 16)), side(optax.MultiSteps(inner, 16))
    [lower() for lower in (ours, theirs)]
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    times = statistics.median(a / b for a, b in pairs)
    print(
        f"\nlowering adam, {leaves} leaves: {times:.2f} of optax's "
        f"{statistics.median(b for _, b in pairs):.1f} s"
    )


def main(asked):
    print(setting())
    names = [n for n in ROWS if not asked or any(n.startswith(a) for a in asked)]
    if names:
        print(
            f"{'':<48} silent emits   both   share of bandwidth in      faster  "
            "a gradient step     temporary memory\n"
            f"{'':<45}  k  /pass  +bare /least  "
            f"{'  '.join(s[:4] for s in SIDES)}"
            "           ms, optax -> ours  bare, optax -> ours"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optax's own, about its deprecations
        for name in names:
            compare(name)
        if not asked or "lowering" in asked:
            lowering()


if __name__ == "__main__":
    main(sys.argv[1:])
