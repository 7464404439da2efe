"""`dtypeguard sweep`: every optimizer of the installed Optax, bare and guarded."""

import argparse
import contextlib
import fnmatch
import json
import os
import time

from .._sweep import catalog
from .._sweep.html import page
from .._sweep.report import Report
from .._sweep.sweep import CONFIGURATIONS, in_order, sweep
from .arguments import report_files
from .display import progress, show
from .load import UsageError
from .output import write
from .reports import CLEAN, DRIFT, check_writable


def swept(arguments: argparse.Namespace) -> int:
    """Sweeps, shows the table and writes it into files.

    Returns:
        The exit status: 1 if a guarded optimizer fails, else 0.

    Raises:
        UsageError: if no optimizer is chosen, or a file cannot be written.
    """
    files = report_files(arguments)
    check_writable(files, arguments)
    entries, unbuilt = catalog.entries()
    chosen = [entry for entry in entries if _matches(entry.id, arguments.filter)]
    unbuilt = [left for left in unbuilt if _matches(left.id, arguments.filter)]
    if not chosen:
        raise UsageError(
            f"--filter {arguments.filter!r} matches none of the {len(entries)} optimizers, "
            f"such as {entries[0].id}. Write for example: dtypeguard sweep --filter adam",
            *(f"{left.id} is not swept: {left.reason}" for left in unbuilt),
        )
    # A worker takes about as long to start as 20 optimizers take.
    jobs = arguments.jobs or min(os.cpu_count() or 1, 8, 1 + len(chosen) // 20)
    start, outcomes = time.monotonic(), []
    with contextlib.closing(sweep(chosen, jobs, origins="html" in files)) as found:
        for some in progress(found, len(chosen) * len(CONFIGURATIONS)):
            outcomes += some
    report = Report(in_order(outcomes), unbuilt, time.monotonic() - start)
    if "json" in files:
        write(files["json"], json.dumps(report.as_json(), indent=1))
    if "html" in files:
        write(files["html"], page(report))
    if arguments.format == "json":
        write("-", json.dumps(report.as_json(), indent=1))
    elif "-" not in files.values():
        show(report)
    return DRIFT if report.guarded_failed else CLEAN


def _matches(name: str, pattern: str) -> bool:
    pattern = pattern.lower().replace("[", "[[]")  # brackets are part of the names
    return fnmatch.fnmatchcase(name.lower(), f"*{pattern}*")
