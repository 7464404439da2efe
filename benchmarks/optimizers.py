"""The corrected optimizers beside optax's own: `python benchmarks/optimizers.py`.

A side is a jitted train step, its params and state donated. A ratio is the median, over
rounds, of our time over optax's within a round: below 1, ours is faster. Memory is in
copies of the params: the state, and what XLA sets aside for a step. It takes 20 seconds.
"""

import warnings

import jax.numpy as jnp
import optax
from timing import Training, problem, ratio, setting, size

import dtypeguard

PAIRS = {
    "prodigy": (optax.contrib.prodigy, dtypeguard.prodigy),
    "prodigy, slice_p=11": (
        optax.contrib.prodigy,
        lambda: dtypeguard.prodigy(slice_p=11),
    ),
    "prodigy, beta1=0": (
        lambda: optax.contrib.prodigy(betas=(0.0, 0.999)),
        lambda: dtypeguard.prodigy(betas=(0.0, 0.999)),
    ),
    "fromage": (lambda: optax.fromage(1e-2), lambda: dtypeguard.fromage(1e-2)),
}
SIZES = ((4, 1024), (100, 64))


def compare(name, dtype, leaves, side):
    params, grads = problem(leaves, side, dtype)
    theirs, ours = (Training(make(), params, grads) for make in PAIRS[name])
    times, milliseconds = ratio(theirs, ours, 101)
    copies = lambda field: " -> ".join(
        f"{getattr(one, field) / size(params):.2f}" for one in (theirs, ours)
    )
    print(
        f"  {name:<20} {times:>5.2f}   {milliseconds:>11.2f}   "
        f"{copies('state_bytes'):<12}   {copies('temporary_bytes')}",
        flush=True,
    )


def main():
    print(setting())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optax's own, about its deprecations
        for leaves, side in SIZES:
            for dtype in (jnp.float32, jnp.bfloat16):
                print(f"\n{leaves} x {side} x {side} {jnp.dtype(dtype).name}")
                print(
                    "                        time   ms in optax   state          temporary"
                )
                for name in PAIRS:
                    compare(name, dtype, leaves, side)


if __name__ == "__main__":
    main()
