"""`python -m optimizer_sweep`: exits with 1 if any guarded configuration fails."""

import argparse
import fnmatch
import os
import sys
import time

from dtypeguard._sweep.inputs import CONFIGURATIONS

from . import catalog
from .report import Report
from .sweep import sweep


def main() -> int:
    """Sweeps what is asked for, and prints the table."""
    parser = argparse.ArgumentParser(prog="optimizer_sweep", description=__doc__)
    parser.add_argument("--filter", default="", help="only optimizers with this in a name")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8))
    options = parser.parse_args()
    pattern = f"*{options.filter.lower().replace('[', '[[]')}*"
    entries, unbuilt = catalog.entries()
    chosen = [x for x in entries if fnmatch.fnmatchcase(x.id.lower(), pattern)]
    start = time.monotonic()
    outcomes = sweep(chosen, options.jobs)
    assert len(outcomes) == 2 * len(chosen) * len(CONFIGURATIONS)
    report = Report(outcomes, unbuilt, time.monotonic() - start)
    print(report)
    return bool(report.guarded_failed or not chosen)


if __name__ == "__main__":
    sys.exit(main())
