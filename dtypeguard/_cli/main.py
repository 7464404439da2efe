"""The command line: `dtypeguard demo`, `run`, `audit`, `precision`, `lock`, ...

Each command imports what it needs: the script of `run` is the first to import JAX.
"""

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from .load import UsageError

USAGE = 2
_COMMANDS = {
    "demo": ("demo", "demo"),
    "audit": ("reports", "report"),
    "precision": ("reports", "report"),
    "plan": ("plan", "plan"),
    "lock": ("lock", "lock"),
    "docs": ("docs", "docs"),
}
_SWEEP = (
    "the sweep over Optax's optimizers is part of dtypeguard's own tests now. For your own "
    "optimizer write dtypeguard.testing.check_contract(optimizer) in a test, or run "
    "dtypeguard audit FILE.py:optimizer"
)


def console() -> int:
    """Runs the command line of this process, whose status is then that of `main`.

    What a target leaves to be run at exit may call `os._exit(0)`, which would end a failed
    check with 0. It ends the process with the status of the check.
    """
    if sys.argv[1:2] == ["run"]:  # a script ends as under `python`
        return main()
    own, process, result = os._exit, os.getpid(), 1

    def end(status: int) -> NoReturn:
        if os.getpid() != process:  # a fork ends so
            own(status)
        for stream in (sys.stdout, sys.stderr):  # which hold the report, in a pipe
            with contextlib.suppress(Exception):
                stream.flush()
        own(status or result)

    os._exit = end
    result = main()
    from .output import to_reader

    with to_reader():  # of what argparse has printed
        pass
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: its arguments; those of the process by default.

    Returns:
        Of `audit`, 0 if the optimizer or step is clean, else 1. Of `demo`, 1 if a scene
        fails although guarded, else 0. Of `precision`, 1 if an output is not
        finite as written, or if the error is above `--max-error`, else 0. Of `plan`, 1 if
        the function by the plan is not within the tolerance, else 0. Of `lock --check`, 1
        if the step is not as locked, else 0. Of `run`, 1 if the script raises,
        else 0. 2 for wrong usage.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv and argv[0] == "run":  # the rest belongs to the script
            from .run import run

            return run(argv[1:])
        if argv and argv[0] == "sweep":
            raise UsageError(_SWEEP)
        from .arguments import check_options, parser

        try:
            arguments = parser().parse_args(argv)
        except SystemExit as stop:  # argparse has printed why
            return stop.code if isinstance(stop.code, int) else USAGE
        if arguments.command == "audit":
            check_options(arguments)
        return _status(arguments)
    except UsageError as error:
        print(f"dtypeguard {argv[0]}:", *error.args, sep="\n  ", file=sys.stderr)
        return USAGE


def _status(arguments: argparse.Namespace) -> int:
    """Runs a command other than `run`.

    Raises:
        UsageError: if it cannot do what is asked, or what is named here ends the program.
    """
    try:
        with _raising_exit():
            file, name = _COMMANDS[arguments.command]
            module = importlib.import_module(f".{file}", __package__)
            return getattr(module, name)(arguments)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # its status would be taken for that of the check
        from .._source.origin import origin_of_error

        origin = origin_of_error(error)
        raise UsageError(
            f"{getattr(arguments, 'target', None) or 'the demo'} was not checked: what is "
            f"named here ended the program, with {type(error).__name__}: {error}",
            *([] if origin is None else [f"  {origin.place}  {origin.code}"]),
            "Take that out, or name a function that returns.",
        ) from error


@contextlib.contextmanager
def _raising_exit() -> Iterator[None]:
    """Has `os._exit`, which nothing catches, raise `SystemExit` as `sys.exit` does."""
    own, process = os._exit, os.getpid()

    def end(status: int) -> NoReturn:
        if os.getpid() != process:  # a fork ends so
            own(status)
        sys.exit(status)

    os._exit = end
    try:
        yield
    finally:
        os._exit = own
