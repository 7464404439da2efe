"""What starting costs: `python benchmarks/startup.py`, three minutes on two cores.

Each side is a process of this Python, timed from start to end. The two sides of a line run
in turn. A ratio is the median, over rounds, of the ratio within a round.
"""

import functools
import pathlib
import platform
import subprocess
import sys
import tempfile

from timing import ratio, setting

SCRIPT = """import jax
import jax.numpy as jnp
print(jnp.ones(3).sum())
"""
IMPORTS = "import jax, optax"
GUARDED = "import jax.numpy as jnp; {}(optax.adam(1e-3)).init(jnp.ones(3))"
BARE = f"{IMPORTS}; {GUARDED.format('')}"
GUARD = f"{IMPORTS}, dtypeguard; {GUARDED.format('dtypeguard.guard')}"


def process(*arguments):
    """Runs this Python, with its output read and left."""
    command = [sys.executable, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main():
    print(f"Python {platform.python_version()}, {setting()}\n")
    print("|  | ratio | seconds more | seconds bare |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        script = str(pathlib.Path(folder) / "script.py")
        pathlib.Path(script).write_text(SCRIPT)
        for title, bare, ours in (
            ("`dtypeguard run`", [script], ["-m", "dtypeguard", "run", script]),
            ("`import dtypeguard`", ["-c", IMPORTS], ["-c", f"{IMPORTS}, dtypeguard"]),
            ("`guard(opt).init(params)`", ["-c", BARE], ["-c", GUARD]),
        ):
            sides = (functools.partial(process, *side) for side in (bare, ours))
            times, milliseconds = ratio(*sides, rounds=21)
            seconds = milliseconds / 1e3
            more = (times - 1) * seconds
            print(f"| {title} | {times:.2f} | {more:.2f} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
