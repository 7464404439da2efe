"""What the command line accepts: one table of options, one of commands."""

import argparse
import difflib
import math
import re
import sys
from typing import Any, NamedTuple, NoReturn

from .. import __version__
from .._demo.names import NAMES
from .run import HELP

_FORMS = "text", "json", "markdown", "html", "github"
_ARGUMENTS = (
    "its arguments, FILE.py:NAME or MODULE:NAME: a tuple of them, a dict of them by name, "
    "or the only one; or a function that returns these"
)


class _Once(argparse.Action):
    """Stores a value, and refuses a second one: the first would do nothing."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest, self.default) is not self.default:
            raise argparse.ArgumentError(self, "it is given twice")
        setattr(namespace, self.dest, values)


def _file(text: str) -> str:
    if not text:  # of a variable that is not set
        raise argparse.ArgumentTypeError("'' names no file")
    return text


def _error(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a relative error: write a number from 0 up, such as 1e-3"
        )
    return number


def _places(text: str) -> int | str | tuple[int | str, ...]:
    found = [int(x) if x.lstrip("-").isdecimal() else x for x in text.split(",")]
    return found[0] if len(found) == 1 else tuple(found)


# By name: what argparse is to do with it. Each means the same for every command.
_OPTIONS: dict[str, dict[str, Any]] = {
    "--inputs": {"metavar": "INPUTS", "help": _ARGUMENTS},
    "--x64": {"action": "store_true", "help": "turn jax_enable_x64 on"},
    "--set": {
        "metavar": "NAME=VALUE",
        "action": "append",
        "default": [],
        "help": "an argument for the function that makes the optimizer; may be repeated",
    },
    "--params": {
        "metavar": "DTYPES",
        "help": "dtypes for the optimizer's params in turn: bfloat16,float32 or bf16,f32 "
        "(default: without --grads several choices, until a leaf drifts; else float32)",
    },
    "--grads": {
        "metavar": "DTYPES",
        "help": "the same for the gradients, `updates` in Python (default: as params)",
    },
    "--carry": {
        "metavar": "WHICH",
        "type": _places,
        "default": 0,
        "help": "the argument of a step that comes back, by position or name, or several: "
        "0,1 or params,opt_state (default: 0)",
    },
    "--returned": {
        "metavar": "WHICH",
        "type": _places,
        "help": "the item of the result that it comes back as, or as many (default: the "
        "result itself if it has the same tree, else the first items)",
    },
    "--wide": {
        "metavar": "DTYPE",
        "help": "the dtype to compare with (default: float32, or float64 if all is in "
        "float32)",
    },
    "--narrow": {
        "metavar": "DTYPE",
        "help": "run it as if all of it were in this dtype, such as bf16; with --tolerance "
        "search which lines have to stay wide",
    },
    "--matmul-precision": {
        "metavar": "NAME",
        "help": "round float32 products as another device does: tpu, a100, bfloat16, ...",
    },
    "--tolerance": {
        "metavar": "X",
        "type": _error,
        "help": "the relative error that the lines to compute wider have to reach (with "
        "--check, by default that of the plan)",
    },
    "--max-error": {"metavar": "X", "type": _error, "help": "exit 1 if the error is above"},
    "--reference": {
        "metavar": "FILE",
        "help": "what the outputs should be: an .npz file with an array for each path of "
        "an output ('out' for the only one), or FILE.py:NAME of such a tree or of a "
        "function; exit 1 if one is another computation",
    },
    "--held-out": {
        "metavar": "INPUTS",
        "action": "append",
        "default": [],
        "help": "arguments that a search does not see: their errors stand beside; may be "
        "repeated",
    },
    "--out": {"metavar": "FILE", "type": _file, "help": "write it (default: print it)"},
    "--check": {
        "metavar": "FILE",
        "type": _file,
        "help": "exit 1 if the target is not as this file says",
    },
    "--update": {
        "metavar": "FILE",
        "type": _file,
        "help": "write the lock anew and print what changed",
    },
    "--json": {
        "metavar": "FILE",
        "nargs": "?",
        "const": "-",
        "help": "as json: to FILE, or printed",
    },
    "--html": {"metavar": "FILE", "help": "write one self-contained page"},
    "--format": {
        "metavar": "FORM",
        "choices": _FORMS,
        "help": f"what is printed: {', '.join(_FORMS)} (default: text; where "
        "GITHUB_ACTIONS is set github, annotations of lines)",
    },
}
_REPEATED = {"metavar": "INPUTS", "action": "append", "default": []}
# Options of 0.1 that go with a later minor version, and what serves in their place.
_REPLACED: dict[str, tuple[dict[str, Any], str]] = {
    "--step": ({"action": "store_true"}, ""),  # which --inputs say
    "--updates": ({"metavar": "DTYPES", "dest": "grads"}, ""),
    "--markdown": (
        {"metavar": "FILE", "nargs": "?", "const": "-"},
        "--format markdown prints it",
    ),
    "--also": (_REPEATED, "let --inputs name a list of arguments"),
    "--budget": (
        {"metavar": "N", "type": int, "default": 300},
        "a search ends by itself",
    ),
}


class _Command(NamedTuple):
    """A command: what its help says, and its options; one with `!` is required."""

    help: str
    description: str
    example: str
    target: str
    options: str
    replaced: str = ""
    exclusive: str = ""


COMMANDS = {
    "audit": _Command(
        "which leaves of an optimizer or a step drift, and on which line of source",
        "Names each leaf of the state, of the updates or of the carry of a step that "
        "changes its type, both types, and the line. With --inputs the target is a step, "
        "else an optimizer. Exits 1 if a leaf does, 2 if it cannot run, else 0.",
        "dtypeguard audit optax:adam --set learning_rate=1e-3, dtypeguard audit "
        "my_script.py:opt or dtypeguard audit my_script.py:train_step --inputs "
        "my_script.py:inputs",
        "an optimizer or a function that makes one: optax:adam, my_script.py:opt, "
        "my_package.optim:make_optimizer; or with --inputs a step",
        "--inputs --x64 --set --params --grads --carry --returned --json --html --format",
        "--step --updates --markdown",
    ),
    "precision": _Command(
        "which lines of a function lose precision, and what to compute wider",
        "Runs a function as written and in wider dtypes. Names the lines that its error "
        "comes from, those that are worth computing wider, and the lines that make it "
        "compute wider than necessary. With --narrow and --tolerance, searches which lines "
        "have to stay wide: a plan for dtypeguard.autocast, which --out writes and --check "
        "measures. Exits 1 if an output is not finite as written, the error is above "
        "--max-error or that of a plan above --tolerance, or the reference is another "
        "computation, 2 if it cannot run, else 0.",
        "dtypeguard precision my_script.py:loss --inputs my_script.py:inputs; dtypeguard "
        "precision train.py:step --inputs train.py:inputs --narrow bfloat16 --tolerance "
        "0.02 --out train.plan",
        "a function of arrays, FILE.py:NAME or MODULE:NAME: a loss, a gradient, a train "
        "step, some steps in a scan",
        "--inputs! --x64 --wide --narrow --matmul-precision --tolerance --max-error "
        "--reference --held-out --json --html --format",
        "--also --budget",
        "--out --check",
    ),
    "lock": _Command(
        "what a step computes in, in a file that reviews read and CI checks",
        "Traces a step and lists, for each of its functions, the types of products, sums, "
        "casts and other arithmetic, and those of inputs, carry and outputs. Nothing is "
        "run. Exits 1 if --check finds that the step is not as locked, 2 if it cannot run, "
        "else 0.",
        "dtypeguard lock my_script.py:step --inputs my_script.py:inputs --check step.lock",
        "a step, FILE.py:NAME or MODULE:NAME",
        "--inputs! --x64 --carry --returned --json --format",
        "",
        "--out --check --update",
    ),
    "docs": _Command(
        "a page of the documentation",
        "Prints a page of the documentation, as Markdown, or a file of one; without a "
        "name, the names of all, with titles. Exits 2 if there is no such page, else 0.",
        "dtypeguard docs explain",
        "",
        "",
    ),
    "demo": _Command(
        "ten programs that fail, the lines, and what one call changes",
        "Runs ten small programs as they are, and with one call added. With a "
        "NAME, shows that one in full. Exits 1 if one fails with the call, else 0.",
        "dtypeguard demo prodigy",
        "",
        "",
    ),
}


def right(command: str) -> str:
    """The sentence with which an error of a command ends."""
    return f"Write for example: {COMMANDS.get(command, COMMANDS['audit']).example}"


class _Parser(argparse.ArgumentParser):
    """Ends its errors with the right form, like all errors of the command line."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.register("action", None, _Once)

    # Of three overloads.
    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Refuses what it does not know itself, with its own usage."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        command = self.prog.rpartition(" ")[2]
        chosen = re.search(r"invalid choice: '([^']*)'", message)
        meant = _meant(chosen[1]) if chosen and command == self.prog else ""
        super().error(f"{message}. {meant or right(command)}")


def _meant(command: str) -> str:
    """What was probably meant by a command that does not exist; empty if not known."""
    others = {"check": "audit", "explain": "run", "measure": "precision", "try": "demo"}
    if command.endswith(".py"):
        return f"Did you mean dtypeguard run {command}?"
    close = difflib.get_close_matches(command, [*COMMANDS, "run"], 1)
    meant = others.get(command) or next(iter(close), "")
    return f"Did you mean dtypeguard {meant}?" if meant else ""


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = _Parser(
        prog="dtypeguard",
        description="Optimizers and steps that give back the dtypes they were given.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "run", help="run a script; type errors name the lines", description=HELP
    )
    for name, command in COMMANDS.items():
        made = commands.add_parser(
            name,
            help=command.help,
            description=command.description,
            epilog=f"For example: {command.example}",
        )
        if command.target:
            made.add_argument("target", metavar="TARGET", help=command.target)
        else:
            choices: dict[str, Any] = {"choices": NAMES} if name == "demo" else {}
            made.add_argument("name", metavar="NAME", nargs="?", help="of one", **choices)
        for option in command.options.split():
            how = _OPTIONS[option.rstrip("!")]
            required: dict[str, Any] = {"required": True} if option.endswith("!") else {}
            made.add_argument(option.rstrip("!"), **how, **required)
        for option in command.replaced.split():
            how, _ = _REPLACED[option]
            made.add_argument(option, **how, help=argparse.SUPPRESS)
        if command.exclusive:
            group = made.add_mutually_exclusive_group()
            for option in command.exclusive.split():
                group.add_argument(option, **_OPTIONS[option])
    return parser


def say_what_is_replaced(words: list[str]) -> None:
    """Says of options of 0.1 what serves in their place."""
    for word in words:
        name = word.partition("=")[0]
        if name in _REPLACED and (instead := _REPLACED[name][1]):
            print(f"dtypeguard: {name} is deprecated: {instead}.", file=sys.stderr)
