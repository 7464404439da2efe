"""Locks the step that a command line names, and checks or updates its lock."""

import argparse
import contextlib
import os
import sys
import tomllib

from .._leaves.compat import add_x64
from .._lines.monitored import RECORD
from .._lock.check import LockError, compared, text_of
from .._lock.step import TracedStep, lock_of
from .._program.trace import TraceFailed
from .forms import FormedReport, check_files, deliver, of_lock
from .options import UsageError, write
from .targets import Reader


def run(options: argparse.Namespace) -> int:
    """Prints, writes, checks or updates a lock."""
    check_files(options, options.out, options.update)
    path = options.out or options.check or options.update
    if options.out and os.path.exists(options.out):
        raise UsageError(
            f"{options.out} exists. To write it anew, use --update: "
            f"{_command(options, options.out)}"
        )
    try:
        with RECORD, contextlib.redirect_stdout(sys.stderr):  # a script may print
            now = _traced(options, path)
        if options.check:
            found = compared(now, path)
            formed = of_lock(found, _command(options, path))
            return deliver(formed, options, found.holds)
        text, said = text_of(now.lock), "written"
        if not path:
            return deliver(FormedReport(text, (), tomllib.loads(text)), options)
        if options.update and os.path.exists(path):
            found = compared(now, path)
            said = "up to date" if found.holds else "updated"
            if not found.holds:
                write("-", found.report())
        write(path, text)
        write("-", f"{path} is {said}.")
    except LockError as error:
        raise UsageError(str(error)) from error
    return 0


def _traced(options: argparse.Namespace, path: str | None) -> TracedStep:
    with add_x64(options.x64):
        call = Reader(options).call()
        try:
            return lock_of(*call[2:], path)
        except LockError:
            raise
        except (TraceFailed, TypeError, ValueError) as error:
            cause = error.__cause__ if isinstance(error, TraceFailed) else error
            with call.running():
                raise cause or error from None


def _command(options: argparse.Namespace, path: str) -> str:
    """The command that updates a lock."""
    words = ["dtypeguard lock", options.target, "--inputs", options.inputs]
    return " ".join([*words, *["--x64"] * options.x64, "--update", path])
