"""Runs the contract tests and the five reports on old and new releases of Optax and JAX.

    python tests/releases.py           # the oldest, the newest Python found, and the newest
                                       # release unless this Python has it
    python tests/releases.py --all     # all of them, with the long tests of `.ci/run`
    python tests/releases.py --write   # all of them, the reports alone, for their page

Each release gets an environment of its own under `.releases/`, made by pip and kept until
its pins change. On newer Pythons than this one nothing is pinned: there it is whatever pip
gives a new user today. Exits 1 if a test fails.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
CACHE = ROOT / ".releases"
PAGE = ROOT / "docs" / "contract.md"
# What works before JAX 0.8 as well, what needs it, and what takes long.
_GUARD = "attempts guard guard_step leaves modules record repeat settle"
TESTS = "whole/test_reports.py", "carry", "leaves"
TESTS += tuple(f"guard/test_{name}.py" for name in _GUARD.split())
NEW_TESTS = "audit", "program", "blame", "tracebacks", "source", "lock/test_lock.py"
NEW_TESTS += "recording", "cli"
NEW_TESTS += "explain/test_operands.py", "explain/test_notes.py"
NEW_TESTS += "precision/test_audit_precision.py", "precision/test_odd_programs.py"
LONG_TESTS = "sweep", "optimizers"
# The pages with what only newer Pythons print.
NOTES = "docs/explain.md", "docs/messages.md"
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
PYTHONS = "3.13", "3.12"
_UNPINNED = "optax", "jax", "numpy", "scipy", "scikit-learn", "equinox"
# What the programs of the table of notes are written with; nothing is recorded before 3.12.
_NOTED = "flax", "dm-haiku", "rlax", "numpyro", "diffrax", "optimistix"
_EVERYWHERE = "jaxtyping==0.3.11", "pytest==9.2.0", "pytest-xdist", "rich"
_TABLE = re.compile(r"(<!-- releases -->\n).*?(<!-- /releases -->)", flags=re.DOTALL)


class Environment(NamedTuple):
    """A Python with one release of Optax and JAX, or with the newest (`upgraded`)."""

    name: str
    base: str
    requirements: tuple[str, ...]
    upgraded: bool = False

    def python(self) -> pathlib.Path:
        """Its Python, made anew if the requirements or the base have changed."""
        home = CACHE / self.name
        python, stamp = home / "bin" / "python", home / "pins.txt"
        of_base = [self.base, "-c", "import sys; print(sys.version)"]
        version = subprocess.run(of_base, check=True, text=True, stdout=subprocess.PIPE)
        wanted = "\n".join([version.stdout.strip(), *self.requirements])
        is_made = stamp.exists() and stamp.read_text() == wanted
        if not is_made:
            shutil.rmtree(home, ignore_errors=True)
            subprocess.run([self.base, "-m", "venv", home], check=True)
        if self.upgraded or not is_made:
            pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            upgrade = ["-U", "--upgrade-strategy", "eager"] if self.upgraded else []
            subprocess.run([*pip, *upgrade, *self.requirements], check=True)
            stamp.write_text(wanted)  # last, so that half an environment is not kept
        return python


def pinned(release: str) -> Environment:
    """That of a release of Optax, with the JAX of its time."""
    jaxlib = RELEASES[release][0].replace("jax==", "jaxlib==")
    requirements = f"optax=={release}", jaxlib, *RELEASES[release], *_EVERYWHERE
    return Environment(f"optax-{release}", sys.executable, requirements)


def newest() -> Iterator[Environment]:
    """That of each newer Python that there is, with what pip gives there."""
    for version in PYTHONS:
        base = next(_places(version), None)
        if base is not None:
            requirements = *_UNPINNED, *_NOTED, *_EVERYWHERE
            yield Environment(f"python-{version}", base, requirements, upgraded=True)


def _places(version: str) -> Iterator[str]:
    name = f"python{version}"
    root = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    of_pyenv = sorted(root.glob(f"versions/{version}.*/bin/{name}"), reverse=True)
    for place in (shutil.which(name), *map(str, of_pyenv)):
        # pyenv has a name on PATH for each that it could install.
        if (
            place
            and not subprocess.run([place, "--version"], capture_output=True).returncode
        ):
            yield place


def run(python: pathlib.Path, *args: str, **kwargs) -> subprocess.CompletedProcess:
    """Runs an environment's Python on this checkout; other frameworks are not in it."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    for name in "CI", "DTYPEGUARD_REQUIRE_ALL":  # a missing framework skips its tests
        variables.pop(name, None)
    return subprocess.run([python, *args], cwd=ROOT, env=variables, text=True, **kwargs)


def table_in(text: str) -> dict[str, dict[str, str]]:
    """The cells of the table on a page: by their line's first, then by the report."""
    lines = _TABLE.search(text)[0].splitlines()[1:-1]
    head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
    return {row[0]: dict(zip(head[1:], row[1:])) for row in rows}


def table(found: dict[str, dict[str, str]]) -> str:
    """As the page has it: a line for each release, a column for each report."""
    titles = list(next(iter(found.values())))
    lines = [["", *titles], ["---"] * (len(titles) + 1)]
    lines += [[label, *cells.values()] for label, cells in found.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def chosen(every: bool) -> list[Environment]:
    """All environments, or the oldest, the newest if not here, and the newest Python."""
    found = list(newest())
    if not found:
        print(f"Found no Python {' or '.join(PYTHONS)}: left out.", file=sys.stderr)
    # This Python runs all tests with what it has, not only `TESTS`.
    pins = (pin.split("==") for pin in (f"optax=={NEWEST}", RELEASES[NEWEST][0]))
    is_here = all(importlib.metadata.version(name) == pin for name, pin in pins)
    few = (OLDEST,) if is_here else (OLDEST, NEWEST)
    return [*map(pinned, RELEASES if every else few), *(found if every else found[:1])]


def reported(environment: Environment) -> tuple[str, pathlib.Path, dict[str, str]]:
    """The label of an environment, its Python, made if need be, and its reports."""
    start = time.monotonic()
    python = environment.python()
    printed = lambda *args: run(python, *args, check=True, stdout=subprocess.PIPE).stdout
    code = "import jax, optax; print(f'optax {optax.__version__}, jax {jax.__version__}')"
    label = printed("-c", code).strip()
    if environment.upgraded:
        label += f", {environment.name.replace('-', ' ').title()}"
    reports = printed("-m", "tests.support.reports")
    print(f"{label}: reports in {time.monotonic() - start:.0f} s", flush=True)
    return label, python, json.loads(reports)


def main() -> int:
    """Makes the environments, runs all in each, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="all, the long tests too")
    parser.add_argument("--write", action="store_true", help="the table on its page")
    args = parser.parse_args()
    found, pythons = {}, {}
    with futures.ThreadPoolExecutor(2) as pool:  # each has one process
        for label, python, cells in pool.map(reported, chosen(args.all or args.write)):
            pythons[label], found[label] = python, cells
    print(table(found), flush=True)
    if args.write:
        PAGE.write_text(_TABLE.sub(lambda m: m[1] + table(found) + m[2], PAGE.read_text()))
        return 0
    failed = []
    for label, python in pythons.items():
        start = time.monotonic()
        is_new = int(re.search(r"jax 0\.(\d+)", label)[1]) >= 8
        folders = *TESTS, *(NEW_TESTS if is_new else ()), *(LONG_TESTS if args.all else ())
        tests = [f"tests/{name}" for name in folders]
        tests += ["-m", "exhaustive or not exhaustive"] if args.all else []
        # The table says that it is skipped where nothing is recorded.
        parts = [("-m", "pytest", "-n", "2", *tests), ("tests/programs/notes.py",)]
        if "Python" in label:  # what the pages show is that of the newest
            parts.append(("tests/follow_pages.py", *NOTES))
        with futures.ThreadPoolExecutor(2) as pool:
            ended = [pool.submit(run, python, *part) for part in parts]
        if any(each.result().returncode for each in ended):
            failed.append(label)
        print(f"{label}: tests in {time.monotonic() - start:.0f} s", flush=True)
    if failed:
        print(f"Tests failed with {'; '.join(failed)}.", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
