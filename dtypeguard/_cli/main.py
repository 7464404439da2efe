"""The command line: `dtypeguard run`, `audit`, `precision`, `lock`, `docs` and `demo`.

Each command imports what it needs: the script of `run` is the first to import JAX.
"""

import argparse
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, TextIO

from .options import UsageError, parse
from .output import report_stream, to_reader

USAGE = 2


def console() -> int:
    """Runs the command line of this process, whose status is then that of `main`.

    What a target leaves to be run at exit may call `os._exit(0)`, which would end a failed
    check with 0. It ends the process with the status of the check.
    """
    if sys.argv[1:2] == ["run"]:  # a script ends as under `python`
        return main()
    result = 1
    exit_at_once = os._exit

    def exit_with_result(status: int) -> NoReturn:
        exit_at_once(status or result)

    _replace_exit(exit_with_result)
    result = main(owns_process=True)
    with to_reader(sys.stdout):  # of what argparse has printed
        return result


def main(argv: Sequence[str] | None = None, owns_process: bool = False) -> int:
    """Runs the command line.

    Args:
        argv: the words after `dtypeguard`; those of this process by default.
        owns_process: whether the process ends with the command.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else ""
    try:
        try:
            options = parse(words)
        except SystemExit:  # argparse has printed the help or the version
            return 0
        # A page of the documentation is printed without JAX, in a tenth of the time.
        if options.command != "docs":
            _check_jax()
        module = importlib.import_module(f".{options.command}", __package__)
        run = getattr(module, f"{options.command}_command")
        if command == "run":
            return run(options)
        with report_stream(owns_process) as stdout:
            return _run_command(run, options, stdout)
    except UsageError as error:
        title = f"dtypeguard {command}".strip()
        print(f"{title}:", *error.args, sep="\n  ", file=sys.stderr)
        return USAGE


def _check_jax() -> None:
    """Refuses older releases, in which only guards and optimizers work."""
    version = importlib.metadata.version("jax")  # the script is the first to import it
    if tuple(map(int, version.split(".")[:2])) < (0, 8):
        advice = "write pip install -U jax"
        raise UsageError(f"needs JAX 0.8 or later, and this is {version}: {advice}.")


def _run_command(
    run: Callable[[argparse.Namespace, TextIO], int],
    options: argparse.Namespace,
    stdout: TextIO,
) -> int:
    """Runs a command other than `run`, whatever a target does to end the process."""
    exit_at_once = os._exit
    # Nothing catches it, and a check that was not made would end with 0.
    _replace_exit(sys.exit)
    try:
        return run(options, stdout)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # its status would be taken for that of the check
        from .targets import reason

        target = getattr(options, "target", "the demo")
        raise UsageError(
            f"{target} was not checked: what is named here ended the program, with "
            f"{reason(error)}",
            "Take that out, or name a function that returns.",
        ) from error
    finally:
        os._exit = exit_at_once


def _replace_exit(end: Callable[[int], NoReturn]) -> None:
    """Has `os._exit` call another function, but for processes that are forked."""
    exit_at_once = os._exit
    process = os.getpid()

    def exit_instead(status: int) -> NoReturn:
        if os.getpid() != process:
            exit_at_once(status)
        end(status)

    os._exit = exit_instead
