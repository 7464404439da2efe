"""Makes the report that a command line asks for, shows it, and writes it into files."""

import argparse
import contextlib
import math
import os
import sys

from .._audit.report import AuditReport
from .._leaves.progress import status
from .._precision.report import PrecisionReport
from .arguments import report_files
from .display import show_report
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
    if arguments.command == "audit" and arguments.target is not None:
        return _audit(arguments, files)
    from .sweep import swept

    if arguments.command == "audit":
        print("audit without a TARGET is `dtypeguard sweep`: write that.", file=sys.stderr)
    return swept(arguments, files)


def _audit(arguments: argparse.Namespace, files: dict[str, str]) -> int:
    with contextlib.redirect_stdout(sys.stderr):  # a script may print
        report = (audit_step if arguments.step else audit_optimizer)(arguments)
    return _deliver(report, files, report.ok, "green")


def _precision(arguments: argparse.Namespace, files: dict[str, str]) -> int:
    with contextlib.redirect_stdout(sys.stderr), status() as show_status:
        report = audit_function(arguments, show_status)
    bound = math.inf if arguments.max_error is None else arguments.max_error
    is_ok = not math.isinf(report.error) and not report.error > bound
    is_ok &= all(each.verdict != "differs" for each in report.differences)
    # Without a bound, an error is neither right nor wrong.
    bounds = arguments.max_error, arguments.tolerance
    is_within = any(x is not None and report.error <= x for x in bounds)
    is_good = is_within or not (report.error or report.costs)
    return _deliver(report, files, is_ok, "green" if is_good else "")


def _deliver(
    report: AuditReport | PrecisionReport, files: dict[str, str], is_ok: bool, style: str
) -> int:
    for form, name in files.items():
        write(name, getattr(report, f"to_{form}")())
    if "-" not in files.values():
        show_report(report, is_ok, style)
    return CLEAN if is_ok else DRIFT


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


def write(name: str, text: str) -> None:
    text = text.rstrip() + "\n"
    if name == "-":
        sys.stdout.write(text)
        return
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)

