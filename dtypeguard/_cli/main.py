"""The command line: `dtypeguard audit` and `dtypeguard run`."""

import argparse
import contextlib
import fnmatch
import json
import os
import sys
import time
from collections.abc import Sequence

from .._sweep import catalog
from .._sweep.entry import Entry
from .._sweep.html import page
from .._sweep.report import Report
from .._sweep.sweep import sweep
from .arguments import check_options, parser
from .display import progress, show, show_audit
from .run import run
from .step_target import audit_step_target
from .target import UsageError, audit_target

CLEAN, DRIFT, USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: its arguments; those of the process by default.

    Returns:
        0 if the audited optimizer or step is clean, or in a sweep if no guarded
        configuration fails; 1 if not; 2 for wrong usage. Of `run`, what it says.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] == "run":  # what is behind it belongs to the script
        try:
            return run(argv[1:])
        except UsageError as error:
            return _refuse(str(error), command="run")
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else USAGE
    named = {form: getattr(arguments, form) for form in ("json", "markdown", "html")}
    files = {form: name for form, name in named.items() if name is not None}
    try:
        check_options(arguments)
        _check(files)
        if arguments.target is None:
            return _sweep(arguments, files)
        return _audit(arguments, files)
    except UsageError as error:
        return _refuse(str(error))


def _audit(arguments: argparse.Namespace, files: dict[str, str]) -> int:
    with contextlib.redirect_stdout(sys.stderr):  # what a script prints is no report
        if arguments.step:
            report = audit_step_target(
                arguments.target,
                arguments.inputs,
                arguments.carry,
                arguments.returned,
                arguments.x64,
            )
        else:
            report = audit_target(
                arguments.target,
                arguments.set,
                "float32" if arguments.params is None else arguments.params,
                arguments.grads,
                arguments.x64,
            )
    for form, name in files.items():
        _write(name, getattr(report, f"to_{form}")())
    if "-" not in files.values():
        show_audit(report)
    return CLEAN if report.ok else DRIFT


def _sweep(arguments: argparse.Namespace, files: dict[str, str]) -> int:
    entries, unbuilt = catalog.entries()
    chosen = [entry for entry in entries if _matches(entry.id, arguments.filter)]
    unbuilt = [left for left in unbuilt if _matches(left.id, arguments.filter)]
    if not chosen:
        return _refuse(
            f"--filter {arguments.filter!r} matches none of the {len(entries)} optimizers, "
            f"whose names are such as {entries[0].id}. "
            "Write for example: dtypeguard audit --filter adam",
            *(f"{left.id} is not swept: {left.reason}" for left in unbuilt),
        )
    report = _sweep_with_progress(chosen, unbuilt, arguments.jobs, "html" in files)
    if "json" in files:
        _write(files["json"], json.dumps(report.as_json(), indent=1))
    if "html" in files:
        _write(files["html"], page(report))
    if "-" not in files.values():
        show(report)
    return DRIFT if report.guarded_failed else CLEAN


def _check(files: dict[str, str]) -> None:
    """Before a long sweep and not after it; what stands in the files stays for now."""
    if list(files.values()).count("-") > 1:
        raise UsageError(
            "one form alone can be printed. Give the others a FILE: "
            "dtypeguard audit optax:sgd --set learning_rate=1e-3 --json --markdown audit.md"
        )
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
                f"Write for example: dtypeguard audit --{form} audit.{form}"
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


def _sweep_with_progress(
    chosen: Sequence[Entry],
    unbuilt: Sequence[catalog.Unbuilt],
    jobs: int | None,
    origins: bool,
) -> Report:
    if jobs is None:
        # A worker takes about as long to start as 20 optimizers take.
        jobs = min(os.cpu_count() or 1, 8, 1 + len(chosen) // 20)
    start = time.monotonic()
    outcomes = []
    with contextlib.closing(sweep(chosen, jobs, origins)) as swept:
        for some in progress(swept, len(chosen)):
            outcomes += some
    return Report(outcomes, unbuilt, time.monotonic() - start)
