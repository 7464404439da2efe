"""Runs the contract tests and the five reports on old and new releases of Optax and JAX.

    python tests/releases.py           # the oldest and the newest, without the long tests
    python tests/releases.py --all     # all six, with them
    python tests/releases.py --write   # all six, the reports alone, for docs/releases.md

Each release gets an environment of its own under `.releases/`, made by pip and kept until
its pins change. Exits 1 if a test fails.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import venv

ROOT = pathlib.Path(__file__).parents[1]
CACHE = ROOT / ".releases"
PAGE = ROOT / "docs" / "releases.md"
TESTS = (
    "whole/test_reports",
    "guard/test_guard",
    "guard/test_guard_edges",
    "guard/test_compose",
    "guard/test_record",
)
LONG_TESTS = (
    "whole/test_digits",
    "sweep/test_contract",
    "optimizers/test_multi_steps",
    "optimizers/test_prodigy",
)
_OLD = (
    "numpy==1.26.4",
    "scipy==1.12.0",
    "scikit-learn==1.7.2",
    "equinox==0.11.10",
    "ml_dtypes==0.5.4",
)
_NEW = "numpy==2.4.6", "scipy==1.17.1", "scikit-learn==1.9.1", "equinox==0.13.8"

# Optax, with the JAX of its time, and what else goes with them.
RELEASES = {
    "0.1.9": ("jax==0.4.25", "chex==0.1.86", *_OLD),
    "0.2.3": ("jax==0.4.31", "chex==0.1.90", *_OLD),
    "0.2.4": ("jax==0.5.0", "chex==0.1.90", *_NEW),
    "0.2.5": ("jax==0.6.2", "chex==0.1.90", *_NEW),
    "0.2.6": ("jax==0.7.2", "chex==0.1.92", *_NEW),
    "0.2.8": ("jax==0.10.2", "chex==0.1.92", *_NEW),
}
OLDEST, *_, NEWEST = RELEASES
_EVERYWHERE = "jaxtyping==0.3.11", "pytest==9.2.0", "pytest-xdist", "rich"
_TABLE = re.compile(r"(<!-- releases -->\n).*?(<!-- /releases -->)", flags=re.DOTALL)


def pins(release: str) -> list[str]:
    """What is installed for a release of Optax."""
    jax = RELEASES[release][0]
    jaxlib = jax.replace("jax==", "jaxlib==")
    return [f"optax=={release}", jaxlib, *RELEASES[release], *_EVERYWHERE]


def environment(release: str) -> pathlib.Path:
    """The Python of a release's environment, made anew if its pins have changed."""
    home = CACHE / f"optax-{release}"
    python, stamp = home / "bin" / "python", home / "pins.txt"
    wanted = "\n".join([sys.version, *pins(release)])
    if not (stamp.exists() and stamp.read_text() == wanted):
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, *pins(release)], check=True)
        stamp.write_text(wanted)  # last, so that half an environment is not kept
    return python


def run(python: pathlib.Path, *args: str, **kwargs) -> subprocess.CompletedProcess:
    """Runs an environment's Python on this checkout."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([python, *args], cwd=ROOT, env=variables, text=True, **kwargs)


def table_in(text: str) -> dict[str, dict[str, str]]:
    """The cells of the table on a page: by the release of Optax, then by the report."""
    lines = _TABLE.search(text)[0].splitlines()[1:-1]
    head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
    return {row[0].split()[1].rstrip(","): dict(zip(head[1:], row[1:])) for row in rows}


def table(found: dict[str, dict[str, str]]) -> str:
    """As the page has it: a line for each release, a column for each report."""
    titles = list(next(iter(found.values())))
    lines = [["", *titles], ["---"] * (len(titles) + 1)]
    for release, cells in found.items():
        lines.append([f"optax {release}, {RELEASES[release][0].replace('==', ' ')}"])
        lines[-1] += cells.values()
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    """Makes the environments, runs all in each, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="all six, the long tests too")
    parser.add_argument("--write", action="store_true", help="the table on its page")
    args = parser.parse_args()
    every = args.all or args.write
    found, pythons = {}, {}
    for release in list(RELEASES) if every else [OLDEST, NEWEST]:
        start = time.monotonic()
        pythons[release] = environment(release)
        reports = run(
            pythons[release], "tests/support/reports.py", check=True, stdout=subprocess.PIPE
        )
        found[release] = json.loads(reports.stdout)
        print(f"optax {release}: reports in {time.monotonic() - start:.0f} s", flush=True)
    print(table(found), flush=True)
    if args.write:
        text = PAGE.read_text()
        PAGE.write_text(_TABLE.sub(lambda m: m[1] + table(found) + m[2], text))
        return 0
    failed = []
    for release, python in pythons.items():
        start = time.monotonic()
        files = [f"tests/{name}.py" for name in (TESTS + LONG_TESTS if args.all else TESTS)]
        if run(
            python, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", *files
        ).returncode:
            failed.append(release)
        print(f"optax {release}: tests in {time.monotonic() - start:.0f} s", flush=True)
    if failed:
        print(f"Tests failed with optax {', '.join(failed)}.", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
