"""Gradient accumulation, optax's and ours: `python benchmarks/accumulation.py`.

A side is a jitted train step, its params and state donated. Timed is a whole gradient
step: k mini-steps, of which the last one emits. A ratio is the median, over rounds, of
optax's time over ours within a round: above 1, ours is faster. Temporary memory is what
XLA sets aside for a mini-step, in copies of the params. About two minutes on two cores.

On Linux, from 32 MiB of temporary memory on the allocator maps it anew at every step, which
the mini-steps that emit nothing feel most: the larger Muon is there, on either side.
"""

import warnings

import optax
from timing import Training, problem, ratio, setting, size

from dtypeguard import multi_steps, prodigy

OPTIMIZERS = {
    "muon": (lambda: optax.contrib.muon(1e-3), 512, {1: 15, 4: 7, 16: 5}),
    "adam": (lambda: optax.adam(1e-3), 1024, {1: 41, 4: 21, 16: 11}),
    "optax's prodigy": (optax.contrib.prodigy, 1024, {1: 41, 4: 21, 8: 11, 16: 11}),
    "dtypeguard.prodigy": (prodigy, 1024, {1: 41, 4: 21, 8: 11, 16: 11}),
}


def compare(name, leaves):
    make, side, rounds_of = OPTIMIZERS[name]
    params, grads = problem(leaves, side)
    print(f"\n{name}, {leaves} x {side} x {side} float32")
    print("   k   faster by   ms in optax   temporary memory, optax -> ours")
    for k, rounds in rounds_of.items():
        theirs = Training(optax.MultiSteps(make(), k), params, grads, k)
        ours = Training(multi_steps(make(), k), params, grads, k)
        times, milliseconds = ratio(theirs, ours, rounds)
        copies = [t.temporary_bytes / size(params) for t in (theirs, ours)]
        print(
            f"  {k:>2}   {1 / times:>9.2f}   {milliseconds:>11.1f}   "
            f"{copies[0]:.2f} -> {copies[1]:.2f}",
            flush=True,
        )


def main():
    print(setting())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optax's own, about its deprecations
        compare("muon", 2)
        for name in OPTIMIZERS:
            compare(name, 4)


if __name__ == "__main__":
    main()
