"""The command line: `dtypeguard demo`, `run`, `audit`, `precision`, `lock`, `sweep`, ...

Each command imports what it needs: the script of `run` is the first to import JAX.
"""

import importlib
import sys
from collections.abc import Sequence

from .load import UsageError

USAGE = 2
_COMMANDS = {
    "demo": ("demo", "demo"),
    "audit": ("reports", "report"),
    "precision": ("reports", "report"),
    "lock": ("lock", "lock"),
    "sweep": ("sweep", "swept"),
    "docs": ("docs", "docs"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: its arguments; those of the process by default.

    Returns:
        Of `audit`, 0 if the optimizer or step is clean, else 1. Of `sweep` and `demo`, 1 if
        anything fails although guarded, else 0. Of `precision`, 1 if an output is not
        finite as written, or if the error is above `--max-error`, else 0. Of `lock
        --check`, 1 if the step is not as locked, else 0. Of `run`, 1 if the script raises,
        else 0. 2 for wrong usage.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv and argv[0] == "run":  # the rest belongs to the script
            from .run import run

            return run(argv[1:])
        from .arguments import check_options, parser

        try:
            arguments = parser().parse_args(argv)
        except SystemExit as stop:  # argparse has printed why
            return stop.code if isinstance(stop.code, int) else USAGE
        command = arguments.command
        if command == "audit":
            check_options(arguments)
            if arguments.target is None:
                text = "audit without a TARGET is `dtypeguard sweep`: write that."
                print(text, file=sys.stderr)
                command = "sweep"
        file, name = _COMMANDS[command]
        module = importlib.import_module(f".{file}", __package__)
        return getattr(module, name)(arguments)
    except UsageError as error:
        print(f"dtypeguard {argv[0]}:", *error.args, sep="\n  ", file=sys.stderr)
        return USAGE
