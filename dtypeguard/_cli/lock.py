"""Locks the step that a command line names, and checks or updates its lock."""

import argparse
import os
import shlex
import tomllib
from typing import TextIO

from .._autocast.plan import PlanError
from .._leaves.compat import add_x64
from .._lock.check import Locked, compared
from .._lock.lock_file import LockError, lock_text
from .._lock.step import lock_of
from .._recording.monitored import RECORD
from .forms import CommandResult, as_json, deliver
from .options import UsageError
from .output import print_text, write_file
from .targets import Reader


def lock_command(options: argparse.Namespace, stdout: TextIO) -> int:
    """Prints, writes, checks or updates a lock."""
    path = options.out or options.check or options.update
    # A lock that is there may be another step's, or tell of a change.
    if options.out and os.path.exists(options.out):
        raise UsageError(
            f"{path} exists. To write it anew, use --update: "
            + _command_to_update(options, path)
        )
    with RECORD, add_x64(options.x64):
        call = Reader(options).call()
        with call.running(LockError, PlanError):
            step = lock_of(call.function, call.args, call.kwargs, path)
            locked = None
            # A missing file is an error of `--check`.
            if options.check or (path and os.path.exists(path)):
                locked = compared(step, path)
    if options.check and locked is not None:
        result = _check_result(locked, _command_to_update(options, path))
        return deliver(result, options, stdout)
    text = lock_text(step.lock)
    if not path:  # a lock is TOML, and so are its data
        result = CommandResult(text, None, as_json(tomllib.loads(text)), is_ok=True)
        return deliver(result, options, stdout)
    if locked is not None and not locked.holds:
        # Before it is overwritten: afterwards nothing tells what changed.
        print_text(locked.report(), stdout)
    write_file(path, text)
    print_text(f"{path} is written.", stdout)
    return 0


def _command_to_update(options: argparse.Namespace, path: str) -> str:
    # A lock that is written without the flag would differ in each float64.
    x64 = " --x64" if options.x64 else ""
    target = f"{shlex.quote(options.target)} --inputs {shlex.quote(options.inputs)}"
    return f"dtypeguard lock {target}{x64} --update {shlex.quote(path)}"


def _check_result(locked: Locked, update: str) -> CommandResult:
    """Returns how a step differs from its lock."""
    step = locked.step.lock.step
    text = f"{step} is as locked in {locked.path}."
    causes = []
    if not locked.holds:
        text = locked.report(update)
        causes = locked.causes()
    data = {
        "step": step,
        "path": locked.path,
        "ok": locked.holds,
        "causes": causes,
    }
    return CommandResult(text, causes, as_json(data), locked.holds)
