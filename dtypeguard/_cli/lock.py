"""Locks the step that a command line names, and checks or updates its lock."""

import argparse
import contextlib
import os
import sys
import tomllib
from types import ModuleType

from .._leaves.compat import add_x64
from .._lock.check import compared, lock_of
from .._lock.step import TracedStep
from .._lock.text import LockError, text_of, write
from .._program.trace import TraceFailed
from .arguments import report_files
from .forms import FormedReport, of_lock
from .inputs import as_error_of_run, as_usage_error, load_inputs
from .load import LOCK_FORMS, UsageError, load
from .output import write as print_text
from .reports import check_writable, deliver

HOLDS, CHANGED = 0, 1


def lock(options: argparse.Namespace) -> int:
    """Prints, writes, checks or updates a lock.

    Returns:
        The exit status, 0 or 1.

    Raises:
        UsageError: if the step, its inputs or the lock cannot be used.
    """
    check_writable(report_files(options), options)
    path = options.out or options.check or options.update
    if options.out and os.path.exists(options.out):
        raise UsageError(
            f"{options.out} exists. To write it anew, use --update: "
            f"{_command(options, options.out)}"
        )
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a script may print
            now = _traced(options, path)
        if options.check:
            found = compared(now, path)
            deliver(of_lock(found, _command(options, path)), options)
            return HOLDS if found.holds else CHANGED
        if options.update and os.path.exists(path):
            found = compared(now, path, is_update=True)
            is_written = found.update()
            changes = [] if found.holds else [found.report()]
            said = f"{path} is {'updated' if is_written else 'up to date'}."
            print_text("-", "\n".join([*changes, said]))
        elif path:
            write(path, text_of(now.lock))
            print_text("-", f"{path} is written.")
        else:
            text = text_of(now.lock)
            deliver(FormedReport(text, (), tomllib.loads(text)), options)
    except LockError as error:
        raise UsageError(str(error)) from error
    return HOLDS


def _traced(options: argparse.Namespace, path: str | None) -> TracedStep:
    modules: dict[str, ModuleType] = {}  # both may share a file, and then its classes
    with add_x64(options.x64):
        step = load(options.target, modules, LOCK_FORMS)
        inputs = load_inputs(options.inputs, options.target, modules)
        with as_usage_error(f"{options.inputs} cannot be called"):
            args, kwargs = inputs()
        try:
            return lock_of(step, args, kwargs, path, options.carry, options.returned)
        except LockError:
            raise
        except (TraceFailed, TypeError, ValueError) as error:
            cause = error.__cause__ if isinstance(error, TraceFailed) else error
            call = step, args, kwargs
            with as_error_of_run(options.target, options.inputs, call):
                raise cause or error from None


def _command(options: argparse.Namespace, path: str) -> str:
    """The command that updates a lock."""
    which = lambda x: ",".join(map(str, x)) if isinstance(x, tuple) else str(x)
    words = ["dtypeguard lock", options.target, "--inputs", options.inputs]
    words += ["--carry", which(options.carry)] if options.carry != 0 else []
    words += ["--returned", which(options.returned)] if options.returned is not None else []
    return " ".join([*words, *["--x64"] * options.x64, "--update", path])
