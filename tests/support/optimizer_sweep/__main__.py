"""Runs all optimizers; exits with 1 if any guarded configuration fails."""

import argparse
import os
import sys
import time

from dtypeguard._sweep.inputs import CONFIGURATIONS

from . import catalog
from .report import failed, report
from .sweep import sweep


def main() -> int:
    """Sweeps what is asked for, and prints the table."""
    parser = argparse.ArgumentParser(
        prog="tests.support.optimizer_sweep", description=__doc__
    )
    parser.add_argument("--filter", default="", help="only optimizers with this in a name")
    parser.add_argument("--bare", action="store_true", help="and as they are")
    options = parser.parse_args()
    entries, unbuilt = catalog.entries()
    chosen = [entry for entry in entries if options.filter in entry.id]
    start = time.monotonic()
    outcomes = sweep(chosen, min(os.cpu_count() or 1, 8), options.bare)
    assert len(outcomes) == (1 + options.bare) * len(chosen) * len(CONFIGURATIONS)
    print(report(outcomes, unbuilt, time.monotonic() - start))
    return bool(failed(outcomes, guarded=True) or not chosen)


if __name__ == "__main__":
    sys.exit(main())
