"""The command line: `dtypeguard audit`, `dtypeguard precision` and `dtypeguard run`."""

import argparse
import contextlib
import fnmatch
import json
import math
import os
import sys
import time
from collections.abc import Sequence

from .._audit.report import AuditReport
from .._precision.report import PrecisionReport
from .._sweep import catalog
from .._sweep.html import page
from .._sweep.report import Report
from .._sweep.sweep import CONFIGURATIONS, in_order, sweep
from .arguments import check_options, parser, report_files
from .display import progress, show, show_report, status
from .load import UsageError
from .precision import audit_function
from .run import run
from .target import audit_optimizer, audit_step

CLEAN, DRIFT, USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: its arguments; those of the process by default.

    Returns:
        Of `audit`, 0 if the optimizer or step is clean, or if no guarded configuration of
        the sweep fails, else 1. Of `precision`, 1 if an output is not finite as written, or
        if the error is above `--max-error`, else 0. Of `run`, 1 if the script raises, else
        0. 2 for wrong usage.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] == "run":  # the rest belongs to the script
        try:
            return run(argv[1:])
        except UsageError as error:
            return _refuse(str(error), command="run")
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as stop:  # argparse has printed why
        return stop.code if isinstance(stop.code, int) else USAGE
    try:
        files, is_precision = report_files(arguments), arguments.command == "precision"
        if not is_precision:
            check_options(arguments)
        _check_writable(files, arguments.command)
        of_audit = _sweep if arguments.target is None else _audit
        return (_precision if is_precision else of_audit)(arguments, files)
    except UsageError as error:
        return _refuse(str(error), command=arguments.command)


def _audit(arguments: argparse.Namespace, files: dict[str, str]) -> int:
    with contextlib.redirect_stdout(sys.stderr):  # a script may print
        report = (audit_step if arguments.step else audit_optimizer)(arguments)
    return _deliver(report, files, report.ok)


def _precision(arguments: argparse.Namespace, files: dict[str, str]) -> int:
    with contextlib.redirect_stdout(sys.stderr), status() as show_status:
        report = audit_function(arguments, show_status)
    bound = arguments.max_error
    is_ok = not math.isinf(report.error) and not (bound and report.error > bound)
    return _deliver(report, files, is_ok)


def _deliver(
    report: AuditReport | PrecisionReport, files: dict[str, str], is_ok: bool
) -> int:
    for form, name in files.items():
        _write(name, getattr(report, f"to_{form}")())
    if "-" not in files.values():
        show_report(report, is_ok)
    return CLEAN if is_ok else DRIFT


def _sweep(arguments: argparse.Namespace, files: dict[str, str]) -> int:
    entries, unbuilt = catalog.entries()
    chosen = [entry for entry in entries if _matches(entry.id, arguments.filter)]
    unbuilt = [left for left in unbuilt if _matches(left.id, arguments.filter)]
    if not chosen:
        return _refuse(
            f"--filter {arguments.filter!r} matches none of the {len(entries)} optimizers, "
            f"such as {entries[0].id}. Write for example: dtypeguard audit --filter adam",
            *(f"{left.id} is not swept: {left.reason}" for left in unbuilt),
        )
    # A worker takes about as long to start as 20 optimizers take.
    jobs = arguments.jobs or min(os.cpu_count() or 1, 8, 1 + len(chosen) // 20)
    start, outcomes = time.monotonic(), []
    with contextlib.closing(sweep(chosen, jobs, origins="html" in files)) as swept:
        for some in progress(swept, len(chosen) * len(CONFIGURATIONS)):
            outcomes += some
    report = Report(in_order(outcomes), unbuilt, time.monotonic() - start)
    if "json" in files:
        _write(files["json"], json.dumps(report.as_json(), indent=1))
    if "html" in files:
        _write(files["html"], page(report))
    if "-" not in files.values():
        show(report)
    return DRIFT if report.guarded_failed else CLEAN


def _check_writable(files: dict[str, str], command: str) -> None:
    """Refuses a file before a long sweep, not after it; leaves what the files hold."""
    forms = [form for form, name in files.items() if name == "-"]
    if len(forms) > 1:
        right = " ".join([f"--{forms[0]}", *(f"--{x} {command}.{x}" for x in forms[1:])])
        raise UsageError(f"only one form can be printed. Give the others a FILE: {right}")
    for form, name in files.items():
        if name == "-":
            continue
        is_new = not os.path.exists(name)
        try:
            with open(name, "a", encoding="utf-8"):
                pass
        except OSError as error:
            raise UsageError(
                f"--{form} {name!r} cannot be written: {error.strerror}. "
                f"Write for example: dtypeguard {command} --{form} {command}.{form}"
            ) from None
        if is_new:
            os.remove(name)


def _write(name: str, text: str) -> None:
    text = text.rstrip() + "\n"
    if name == "-":
        sys.stdout.write(text)
        return
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)


def _matches(name: str, pattern: str) -> bool:
    pattern = pattern.lower().replace("[", "[[]")  # brackets are part of the names
    return fnmatch.fnmatchcase(name.lower(), f"*{pattern}*")


def _refuse(*lines: str, command: str = "audit") -> int:
    print(f"dtypeguard {command}:", *lines, sep="\n  ", file=sys.stderr)
    return USAGE
