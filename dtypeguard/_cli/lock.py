"""Locks the step that a command line names, and checks or updates its lock."""

import argparse
import os
import tomllib
from typing import TextIO

from .._autocast.plan import PlanError
from .._leaves.compat import add_x64
from .._lines.monitored import RECORD
from .._lock.check import Locked, LockError, compared, data_of_cause, text_of
from .._lock.step import lock_of
from .._program.trace import TraceFailed
from .forms import check_files, deliver
from .options import UsageError
from .output import print_text, write_file
from .targets import Reader


def run(options: argparse.Namespace, stdout: TextIO) -> int:
    """Prints, writes, checks or updates a lock."""
    check_files(options, options.out, options.update)
    path = options.out or options.check or options.update
    words = ["dtypeguard lock", options.target, "--inputs", options.inputs]
    update = " ".join([*words, *["--x64"] * options.x64, "--update", str(path)])
    if options.out and os.path.exists(options.out):
        raise UsageError(f"{path} exists. To write it anew, use --update: {update}")
    with RECORD, add_x64(options.x64):
        call = Reader(options).call()
        with call.running(LockError, PlanError):
            try:
                now = lock_of(*call[2:], path)
            except TraceFailed as failed:
                raise failed.__cause__ or failed from None
            is_there = path and os.path.exists(path)
            found = compared(now, path) if options.check or is_there else None
    if found and options.check:
        return _checked(options, stdout, found, update)
    text = text_of(now.lock)
    if not path:
        return deliver(options, stdout, text, True, data=tomllib.loads(text))
    if found and not found.holds:
        print_text(found.report(), stdout)
    said = "written" if found is None else "up to date" if found.holds else "updated"
    write_file(path, text)
    print_text(f"{path} is {said}.", stdout)
    return 0


def _checked(
    options: argparse.Namespace, stdout: TextIO, found: Locked, update: str
) -> int:
    """Delivers what differs from a lock."""
    step, path = found.now.lock.step, found.path
    text = f"{step} is as locked in {path}." if found.holds else found.report(update)
    causes = [] if found.holds else map(data_of_cause, found.causes()[0])
    data = {"step": step, "path": path, "ok": found.holds, "causes": [*causes]}
    return deliver(options, stdout, text, found.holds, data=data)
