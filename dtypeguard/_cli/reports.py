"""Makes the report that a command line asks for, shows it, and writes it into files."""

import argparse
import contextlib
import math
import os
import sys

from .._audit.report import AuditReport
from .._precision.progress import status
from .._precision.report import PrecisionReport
from . import output
from .arguments import report_files
from .forms import FormedReport, annotations, findings, formed
from .load import UsageError
from .output import default_form, write, writer
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
    check_writable(report_files(arguments), arguments)
    return (_precision if arguments.command == "precision" else _audit)(arguments)


def _audit(arguments: argparse.Namespace) -> int:
    with contextlib.redirect_stdout(sys.stderr):  # a script may print
        report = (audit_step if arguments.step else audit_optimizer)(arguments)
    return deliver(report, arguments, report.ok, "green")


def _precision(arguments: argparse.Namespace) -> int:
    shown = status(every=output.SILENCE)
    with contextlib.redirect_stdout(sys.stderr), shown as show_status:
        report = audit_function(arguments, show_status)
    bound = math.inf if arguments.max_error is None else arguments.max_error
    is_ok = not math.isinf(report.error) and not report.error > bound
    is_ok &= all(each.verdict != "differs" for each in report.differences)
    # Without a bound, an error is neither right nor wrong.
    bounds = arguments.max_error, arguments.tolerance
    is_within = any(x is not None and report.error <= x for x in bounds)
    is_good = is_within or not (report.error or report.costs)
    return deliver(report, arguments, is_ok, "green" if is_good else "")


def deliver(
    report: AuditReport | PrecisionReport | FormedReport,
    options: argparse.Namespace,
    is_ok: bool = True,
    style: str = "",
) -> int:
    """Writes a report into files, and prints it in the form that is asked for.

    Returns:
        The exit status, 0 or 1.
    """
    files = report_files(options)
    for form, name in files.items():
        write(name, formed(report, form))
    form = options.format or default_form()
    if "-" in files.values():
        return CLEAN if is_ok else DRIFT
    if form in ("text", "github") and not isinstance(report, FormedReport):
        show = writer()
        headline, *lines = str(report).splitlines()
        show(headline, f"bold {style}" if is_ok else "bold red")
        for line in lines:
            show(line)
    else:
        write("-", formed(report, "text" if form == "github" else form))
    if form == "github":
        write("-", "\n".join(annotations(findings(report))))
    return CLEAN if is_ok else DRIFT


def check_writable(files: dict[str, str], options: argparse.Namespace) -> None:
    """Refuses a file before a long sweep, not after it; leaves what the files hold."""
    command = options.command
    forms = [form for form, name in files.items() if name == "-"]
    forms += [options.format] * (options.format not in (None, *forms))
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
