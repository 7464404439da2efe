"""The command line: `dtypeguard run`, `audit`, `precision`, `lock`, `docs` and `demo`.

Each command imports what it needs: the script of `run` is the first to import JAX.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, TextIO

from .options import UsageError, parse
from .output import report_stream, to_reader

USAGE = 2
_Run = Callable[[argparse.Namespace, TextIO], int]


def console() -> int:
    """Runs the command line of this process, whose status is then that of `main`.

    What a target leaves to be run at exit may call `os._exit(0)`, which would end a failed
    check with 0. It ends the process with the status of the check.
    """
    if sys.argv[1:2] == ["run"]:  # a script ends as under `python`
        return main()
    result = 1
    _replace_exit(lambda status, end: end(status or result))
    result = main(owns_process=True)
    with to_reader(sys.stdout):  # of what argparse has printed
        return result


def main(argv: Sequence[str] | None = None, owns_process: bool = False) -> int:
    """Runs the command line.

    Args:
        argv: the words after `dtypeguard`; those of this process by default.
        owns_process: whether the process ends with the command.
    """
    argv = [*(sys.argv[1:] if argv is None else argv)]
    command = next(iter(argv), "")
    try:
        if command in ("run", "audit", "precision", "lock", "demo"):
            _check_jax()
        try:
            arguments = parse(argv)
        except SystemExit:  # argparse has printed the help or the version
            return 0
        run = importlib.import_module(f".{arguments.command}", __package__).run
        if command == "run":
            return run(arguments)
        with report_stream(owns_process) as report:
            return _status(run, arguments, report)
    except UsageError as error:
        print(
            f"dtypeguard {command}".strip() + ":", *error.args, sep="\n  ", file=sys.stderr
        )
        return USAGE


def _check_jax() -> None:
    """Refuses older releases, in which only guards and optimizers work."""
    version = importlib.metadata.version("jax")  # the script is the first to import it
    if tuple(map(int, version.split(".")[:2])) < (0, 8):
        advice = "write pip install -U jax"
        raise UsageError(f"needs JAX 0.8 or later, and this is {version}: {advice}.")


def _status(run: _Run, arguments: argparse.Namespace, report: TextIO) -> int:
    """Runs a command other than `run`, whatever a target does to end the process."""
    own = os._exit  # which nothing catches; here it raises as `sys.exit` does
    _replace_exit(lambda status, end: sys.exit(status))
    try:
        return run(arguments, report)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # its status would be taken for that of the check
        from .._source.origin import origin_of_error

        origin = origin_of_error(error)
        raise UsageError(
            f"{getattr(arguments, 'target', 'the demo')} was not checked: what is named "
            f"here ended the program, with {type(error).__name__}: {error}",
            *([] if origin is None else [f"  {origin.place}  {origin.code}"]),
            "Take that out, or name a function that returns.",
        ) from error
    finally:
        os._exit = own


def _replace_exit(instead: Callable[[int, Callable[[int], NoReturn]], NoReturn]) -> None:
    """Has `os._exit` call something with its status and itself; in a fork, only itself."""
    own, process = os._exit, os.getpid()

    def end(status: int) -> NoReturn:
        if os.getpid() != process:
            own(status)
        for stream in (sys.stdout, sys.stderr):  # which hold the report, in a pipe
            with contextlib.suppress(Exception):
                stream.flush()
        instead(status, own)

    os._exit = end
