"""Makes the report that a command line asks for, shows it, and writes it into files."""

import argparse
import contextlib
import fnmatch
import json
import math
import os
import sys
import time

from .._audit.report import AuditReport
from .._precision.report import PrecisionReport
from .._sweep import catalog
from .._sweep.html import page
from .._sweep.report import Report
from .._sweep.sweep import CONFIGURATIONS, in_order, sweep
from .arguments import report_files
from .display import progress, show, show_report, status
from .load import UsageError
from .precision import audit_function
from .target import audit_optimizer, audit_step

CLEAN, DRIFT = 0, 1


def report(arguments: argparse.Namespace) -> int:
    """Makes, shows and writes a report.

    Returns:
        The exit status, 0 or 1.

    Raises:
        UsageError: if the target, an option or a file cannot be used.
    """
    files = report_files(arguments)
    _check_writable(files, arguments.command)
    if arguments.command == "precision":
        return _precision(arguments, files)
    return (_sweep if arguments.target is None else _audit)(arguments, files)


def _audit(arguments: argparse.Namespace, files: dict[str, str]) -> int:
    with contextlib.redirect_stdout(sys.stderr):  # a script may print
        report = (audit_step if arguments.step else audit_optimizer)(arguments)
    return _deliver(report, files, report.ok)


def _precision(arguments: argparse.Namespace, files: dict[str, str]) -> int:
    with contextlib.redirect_stdout(sys.stderr), status() as show_status:
        report = audit_function(arguments, show_status)
    bound = math.inf if arguments.max_error is None else arguments.max_error
    is_ok = not math.isinf(report.error) and not report.error > bound
    is_ok &= all(each.verdict != "differs" for each in report.differences)
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
        raise UsageError(
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
    forms_of: dict[str, list[str]] = {}
    for form, name in files.items():
        if os.path.isfile(name) or not os.path.exists(name):  # no /dev/null
            forms_of.setdefault(os.path.realpath(name), []).append(form)
    for forms in forms_of.values():
        if len(forms) > 1:
            named = " and ".join(f"--{x}" for x in forms)
            right = " ".join(f"--{x} {command}.{x}" for x in forms)
            raise UsageError(f"{named} name one file. Write for example: {right}")
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
