"""The command line: `dtypeguard audit`."""

import argparse
import contextlib
import fnmatch
import json
import os
import sys
import time
from collections.abc import Sequence

from . import __version__, _catalog
from ._display import progress, show
from ._entry import Entry
from ._sweep import sweep
from ._sweep_report import Report

CLEAN, DRIFT, USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: its arguments; those of the process by default.

    Returns:
        0 if no guarded configuration fails, 1 if one does, 2 for wrong usage.
    """
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else USAGE
    entries, unbuilt = _catalog.entries()
    chosen = [entry for entry in entries if _matches(entry.id, arguments.filter)]
    unbuilt = [left for left in unbuilt if _matches(left.id, arguments.filter)]
    if not chosen:
        return _refuse(
            f"--filter {arguments.filter!r} matches none of the {len(entries)} optimizers, "
            f"whose names are such as {entries[0].id}. "
            "Write for example: dtypeguard audit --filter adam",
            *(f"{left.id} is not swept: {left.reason}" for left in unbuilt),
        )
    with contextlib.ExitStack() as stack:
        json_file = None
        if arguments.json is not None:
            try:
                json_file = stack.enter_context(open(arguments.json, "w"))
            except OSError as error:
                return _refuse(
                    f"--json {arguments.json!r} cannot be written: {error.strerror}. "
                    "Write for example: dtypeguard audit --json audit.json"
                )
        report = _sweep_with_progress(chosen, unbuilt, arguments.jobs)
        if json_file is not None:
            json.dump(report.as_json(), json_file, indent=1)
    show(report)
    return DRIFT if report.guarded_failed else CLEAN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dtypeguard",
        description="Any Optax optimizer gives back the dtypes it was given.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    audit = commands.add_parser(
        "audit",
        help="every optimizer of the installed optax, bare and guarded",
        description="Traces every optimizer of the installed optax, bare and guarded, "
        "over param and gradient dtypes, with x64 off and on: eval_shape, scan, cond, "
        "MultiSteps, compilations. Exits 0 if nothing guarded fails, else 1.",
    )
    audit.add_argument(
        "--filter",
        metavar="PATTERN",
        default="",
        help="only optimizers whose name has this in it; * and ? stand for anything",
    )
    audit.add_argument("--json", metavar="FILE", help="write every outcome to FILE")
    audit.add_argument(
        "--jobs", metavar="N", type=_positive, help="worker processes (default: by size)"
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1, 2, 3, ...")
    return int(text)


def _matches(name: str, pattern: str) -> bool:
    pattern = pattern.lower().replace("[", "[[]")  # brackets are part of the names
    return fnmatch.fnmatchcase(name.lower(), f"*{pattern}*")


def _refuse(*lines: str) -> int:
    print("dtypeguard audit:", *lines, sep="\n  ", file=sys.stderr)
    return USAGE


def _sweep_with_progress(
    chosen: Sequence[Entry], unbuilt: Sequence[_catalog.Unbuilt], jobs: int | None
) -> Report:
    if jobs is None:
        # A worker takes about as long to start as 20 optimizers take.
        jobs = min(os.cpu_count() or 1, 8, 1 + len(chosen) // 20)
    start = time.monotonic()
    outcomes = []
    with contextlib.closing(sweep(chosen, jobs)) as swept:
        for some in progress(swept, len(chosen)):
            outcomes += some
    return Report(outcomes, unbuilt, time.monotonic() - start)
