"""The command line: `dtypeguard audit` and `dtypeguard run`."""

import argparse
import contextlib
import fnmatch
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from .. import __version__
from .._sweep import catalog
from .._sweep.entry import Entry
from .._sweep.html import page
from .._sweep.report import Report
from .._sweep.sweep import sweep
from .display import progress, show, show_audit
from .run import HELP, run
from .target import FORMS, UsageError, audit_target

CLEAN, DRIFT, USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: its arguments; those of the process by default.

    Returns:
        0 if the audited optimizer is clean, or in a sweep if no guarded configuration
        fails; 1 if not; 2 for wrong usage. Of `run`, what it says.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] == "run":  # what is behind it belongs to the script
        try:
            return run(argv[1:])
        except UsageError as error:
            return _refuse(str(error), command="run")
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else USAGE
    named = {form: getattr(arguments, form) for form in ("json", "markdown", "html")}
    files = {form: name for form, name in named.items() if name is not None}
    try:
        _check(files)
        if arguments.target is None:
            return _sweep(arguments, files)
        return _audit(arguments, files)
    except UsageError as error:
        return _refuse(str(error))


def _audit(arguments: argparse.Namespace, files: dict[str, str]) -> int:
    for option in ("filter", "jobs"):
        if getattr(arguments, option):
            raise UsageError(
                f"--{option} is for the sweep, without a target. "
                f"Write: dtypeguard audit {arguments.target}"
            )
    with contextlib.redirect_stdout(sys.stderr):  # what a script prints is no report
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
    for form, name in files.items():
        if ":" in name and not os.path.isabs(name):
            raise UsageError(
                f"{name!r} was taken for the FILE of --{form}. Write the target first: "
                f"dtypeguard audit {name} --{form}"
            )
    of_one = arguments.params, arguments.grads, files.get("markdown")
    if arguments.set or arguments.x64 or of_one != (None, None, None):
        raise UsageError(
            "--set, --params, --grads, --x64 and --markdown are for one optimizer. "
            "Write for example: dtypeguard audit optax:adam --set learning_rate=1e-3"
        )
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


class _Parser(argparse.ArgumentParser):
    """Ends its complaints with the right form, as all others end."""

    def error(self, message: str) -> NoReturn:
        super().error(f"{message}. {FORMS}")


def _parser() -> argparse.ArgumentParser:
    """Every command with its options. As long as they are many, a call for each."""
    parser = _Parser(
        prog="dtypeguard",
        description="Any Optax optimizer gives back the dtypes it was given.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "run", help="run a script; errors over types name the lines", description=HELP
    )
    audit = commands.add_parser(
        "audit",
        help="which leaves of an optimizer drift, and on which line of source",
        description="With a target: which leaf of its state or updates changes its type, "
        "from what to what, and on which line. Exits 0 if none does, else 1. Without: "
        "traces every optimizer of the installed optax, bare and guarded, over param and "
        "gradient dtypes, with x64 off and on: init, eval_shape, scan, cond, MultiSteps, "
        "compilations. Exits 0 if nothing guarded fails, else 1.",
        epilog="Example: dtypeguard audit optax.contrib:prodigy --set learning_rate=1.0 "
        "--params bfloat16,float32 --grads float32 --x64",
    )
    audit.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="an optimizer or a function that makes one: optax:adam, "
        "my_package.optim:make_optimizer, my_script.py:opt",
    )
    audit.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument for the function that makes the target; may be repeated",
    )
    audit.add_argument(
        "--params",
        metavar="DTYPES",
        help="dtypes dealt out over the target's params (default: float32)",
    )
    audit.add_argument(
        "--grads",
        metavar="DTYPES",
        help="the same for the gradients (default: the params')",
    )
    audit.add_argument("--x64", action="store_true", help="with jax_enable_x64")
    audit.add_argument(
        "--filter",
        metavar="PATTERN",
        default="",
        help="sweep only optimizers whose name has this in it; * and ? stand for anything",
    )
    for form in ("json", "markdown"):
        audit.add_argument(
            f"--{form}",
            metavar="FILE",
            nargs="?",
            const="-",
            help=f"as {form}: to FILE, or printed",
        )
    audit.add_argument("--html", metavar="FILE", help="write one self-contained page")
    audit.add_argument(
        "--jobs",
        metavar="N",
        type=_positive,
        help="worker processes of the sweep (default: by size)",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1, 2, 3, ...")
    return int(text)


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
