"""What `dtypeguard run` costs a script: `python benchmarks/recording.py`, five minutes.

It needs Python 3.12, before which nothing is recorded. Each script runs under `python` and
under `dtypeguard run` in turn, and prints the processor time of its own work after the
imports. A ratio is the median, over rounds, of the ratio within a round. The most that is
wanted: 1.1 for a training and for pure Python, 1.3 for eager code.

Python 3.13, JAX 0.12.0, Optax 0.2.8, two cores that others used as well: seconds under
`python`, and the ratio.

    a million lines               0.06 s   0.98
    300,000 calls                 0.04 s   1.06
    100 eager gradients           0.87 s   1.07
    a training of 3,000 steps     2.16 s   1.09
"""

import pathlib
import statistics
import subprocess
import sys
import tempfile

from timing import setting

HEAD = "import jax, jax.numpy as jnp, optax, time\n"
TAIL = "\nprint(time.process_time() - begin)\n"
SCRIPTS = {
    "a million lines": """
def run():
    total = 0
    for i in range(1_000_000):
        total = total + i
begin = time.process_time()
run()""",
    "300,000 calls": """
def add(x):
    return x + 1
def run():
    total = 0
    for i in range(300_000):
        total = add(total)
begin = time.process_time()
run()""",
    "100 eager gradients": """
def loss(w, x):
    h = jnp.tanh(x @ w)
    return ((h - jnp.mean(h)) ** 2).sum()
w, x = jnp.ones((8, 8)), jnp.ones((4, 8))
jax.grad(loss)(w, x)
begin = time.process_time()
for _ in range(100):
    w = w - 0.1 * jax.grad(loss)(w, x)""",
    "a training of 3,000 steps": """
def loss(params, x):
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return jnp.mean(x**2)
opt = optax.adam(1e-3)
@jax.jit
def step(params, state, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    updates, state = opt.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value
begin = time.process_time()
params = [(jnp.ones((64, 64)) / 64, jnp.zeros(64)) for _ in range(4)]
state, x = opt.init(params), jnp.ones((128, 64))
for _ in range(3000):
    params, state, value = step(params, state, x)
jax.block_until_ready(params)""",
}
ROUNDS = 5


def seconds(*command):
    """The processor time that a script prints last."""
    done = subprocess.run(
        [sys.executable, *command], check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def main():
    """Prints a ratio for each script."""
    print(setting())
    with tempfile.TemporaryDirectory() as folder:
        for name, text in SCRIPTS.items():
            file = pathlib.Path(folder) / "script.py"
            file.write_text(HEAD + text + TAIL)
            pairs = [
                (seconds(file), seconds("-m", "dtypeguard", "run", file))
                for _ in range(ROUNDS)
            ]
            ratio = statistics.median(recorded / bare for bare, recorded in pairs)
            bare = statistics.median(bare for bare, _ in pairs)
            print(f"{name:26}  {bare:6.2f} s  {ratio:5.2f}", flush=True)


if __name__ == "__main__":
    main()
