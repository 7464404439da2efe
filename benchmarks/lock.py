"""How long a lock is, and how long it takes over `jax.make_jaxpr`.

    python benchmarks/lock.py

On the transformer's step of `tests/support/locked_step.py`, its layers in a scan and in a
Python loop. Nothing is run; both sides are traced in turn, from empty caches.
"""

import pathlib
import statistics
import sys
import time

import jax

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from dtypeguard._lock.lock_file import lock_text  # noqa: E402
from dtypeguard._lock.step import lock_of  # noqa: E402
from tests.support import locked_step as program  # noqa: E402

_TIMES = 5


def looped(params, tokens):
    """The forward pass with the layers in a Python loop."""
    x = params["embed"][tokens]
    for number in range(len(params["blocks"]["up"])):
        x, _ = program.block(x, jax.tree.map(lambda p, n=number: p[n], params["blocks"]))
    return program.rms_norm(x, params["norm"]) @ params["embed"].T


def main() -> None:
    """Prints a table."""
    print(f"jax {jax.__version__}, {_TIMES} traces each")
    print("layers          lines  make_jaxpr   lock  ratio")
    scanned = program.forward
    for name, forward in (("scan", scanned), ("loop", looped)):
        program.forward = forward
        for layers in (2, 12, 96):
            inputs = program.inputs(layers)
            bare, locked, text = [], [], ""
            for _ in range(_TIMES):
                jax.clear_caches()
                start = time.perf_counter()
                jax.make_jaxpr(program.step)(*inputs)
                middle = time.perf_counter()
                jax.clear_caches()
                again = time.perf_counter()
                text = lock_text(lock_of(program.step, inputs, {}, None).lock)
                bare.append(middle - start)
                locked.append(time.perf_counter() - again)
            one, other = map(statistics.median, (bare, locked))
            lines = len(text.splitlines())
            print(
                f"{layers:>3} in a {name}  {lines:>6}  {1e3 * one:>7.0f} ms"
                f"  {1e3 * other:>5.0f} ms  {other / one:.2f}"
            )


if __name__ == "__main__":
    main()
