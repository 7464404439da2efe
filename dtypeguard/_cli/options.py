"""What the command line accepts: the options of each command, by argparse.

Nothing here imports JAX: a script may set variables that JAX reads.
"""

import argparse
import ast
import contextlib
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from .. import __version__


class UsageError(Exception):
    """The command line asks for what cannot be done; the message shows the right form."""


# The types of options --------------------------------------------------------------------


def _literal(text: str) -> object:
    """Returns a literal of Python; the text where that is none."""
    # A word without quotes, which a shell would take away, is a string.
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return text


def _parse_setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    # Other languages write them so, and a string in their place would count as true.
    if value in ("true", "false", "none"):
        value = value.title()
    return name, _literal(value)


# As a jaxpr shortens them, which is where most dtypes are read.
_FULL_NAMES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "c64": "complex64",
    "c128": "complex128",
}


def _dtype(name: str) -> Any:
    """Returns a dtype, in full or as in a jaxpr, such as `bf16`."""
    import jax.numpy as jnp  # not before: a script may set variables that JAX reads

    try:
        dtype = jnp.dtype(_FULL_NAMES.get(name, name))
    except TypeError:
        raise argparse.ArgumentTypeError(f"{name!r} is not a dtype") from None
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise argparse.ArgumentTypeError(f"{name} is not floating or complex")
    return dtype


def _dtypes(text: str) -> tuple[str, ...]:
    return tuple(str(_dtype(name)) for name in text.split(","))


def _number_from_zero(text: str) -> float:
    with contextlib.suppress(ValueError):
        number = float(text)
        if 0 <= number < math.inf:
            return number
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a finite number from 0 up, such as 1e-3"
    )


def _seconds(text: str) -> float | None:
    return None if text.lower() == "none" else _number_from_zero(text)


def _new_file(name: str) -> str:
    """Returns the name of a file; refuses one in no folder before long work, not after."""
    if not os.path.isdir(os.path.dirname(os.path.abspath(name))):
        raise argparse.ArgumentTypeError(f"{name!r} cannot be written: no such folder")
    return name


def _parse_places(text: str) -> object:
    places = [_literal(place) for place in text.split(",")]
    return places[0] if len(places) == 1 else tuple(places)


# The commands ----------------------------------------------------------------------------


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all",
        action="store_true",
        help="name every leaf, where notes and list otherwise fit on a screen",
    )
    _add_format(parser)
    parser.add_argument(
        "--json",
        action="store_const",
        const="json",
        dest="format",
        help="end standard output with what was found, as json",
    )
    parser.add_argument(
        "-m", action="store_true", dest="is_module", help="SCRIPT is a module"
    )
    parser.add_argument(
        "script",
        metavar="SCRIPT ...",
        # Options behind the name are the script's.
        nargs=argparse.REMAINDER,
        help="the script or module, and its arguments",
    )


def _add_audit(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_parse_setting,
        help="name=value for the function that makes the optimizer; may be repeated",
    )
    parser.add_argument(
        "--params",
        type=_dtypes,
        help="dtypes for the optimizer's params in turn: bfloat16,float32 or bf16,f32 "
        "(default: without --grads several choices, until a leaf drifts; else float32)",
    )
    parser.add_argument(
        "--grads", type=_dtypes, help="the same for the gradients (default: as params)"
    )
    parser.add_argument(
        "--carry",
        type=_parse_places,
        default=0,
        help="the argument of a step that comes back, by position or name, or several: "
        "0,1 or params,opt_state (default: 0)",
    )
    parser.add_argument(
        "--returned",
        type=_parse_places,
        help="the item of the result that it comes back as, or as many (default: the "
        "result itself if it has the same tree, else the first items)",
    )
    _add_json(parser)


def _add_precision(parser: argparse.ArgumentParser) -> None:
    _add_target(parser, needs_inputs=True)
    parser.add_argument(
        "--wide",
        type=_dtype,
        help="the dtype to compare with (default: float32, or float64 if all is float32)",
    )
    parser.add_argument(
        "--narrow",
        type=_dtype,
        help="run it as if all of it were in this dtype, such as bf16; with "
        "--tolerance search which lines have to stay wide",
    )
    parser.add_argument(
        "--matmul-precision",
        help="round float32 products as another device does: tpu, a100, ...",
    )
    parser.add_argument(
        "--tolerance",
        type=_number_from_zero,
        help="the relative error that the lines to compute wider have to reach "
        "(with --check, by default that of the plan)",
    )
    parser.add_argument(
        "--max-error", type=_number_from_zero, help="exit 1 if the error is above"
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=60.0,
        help="after so many seconds measure no more lines, of which the most important "
        "come first; none for all of them (default: 60). The error and the exit status do "
        "not depend on it",
    )
    parser.add_argument(
        "--reference",
        help="what the outputs should be: an .npz file with an array for each path "
        "of an output ('out' for the only one), or FILE.py:NAME of such a tree or of a "
        "function; exit 1 if one is another computation",
    )
    parser.add_argument(
        "--held-out",
        action="append",
        default=[],
        help="as --inputs, of which a search only says the error; may be repeated",
    )
    _add_json(parser)
    _add_files(parser)


def _add_lock(parser: argparse.ArgumentParser) -> None:
    _add_target(parser, needs_inputs=True)
    _add_json(parser)
    _add_files(parser).add_argument(
        "--update",
        type=_new_file,
        help="write the lock in this file anew and print what changed",
    )


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="of a page, a file or a scene; of docs, a word as well",
    )


def _add_target(parser: argparse.ArgumentParser, needs_inputs: bool = False) -> None:
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="what is looked at: FILE.py:NAME or MODULE:NAME",
    )
    parser.add_argument(
        "--inputs",
        required=needs_inputs,
        help="its arguments, FILE.py:NAME or MODULE:NAME: a tuple of them, a dict of "
        "them by name, or the only one; or a function that returns these",
    )
    parser.add_argument("--x64", action="store_true", help="turn jax_enable_x64 on")
    # Of 0.1: it does nothing, and goes with a later minor version.
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        type=_new_file,
        help="as json: to this file, or printed",
    )
    _add_format(parser)


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=("text", "json", "github"),
        default=_default_form(),
        help="what is printed: text, json or github, annotations of lines (default: "
        "text; where GITHUB_ACTIONS is set github)",
    )


def _default_form() -> str:
    """Returns the form where none is asked for: that of GitHub in its workflows."""
    # A runner sets it to "true"; who runs a workflow elsewhere may set it to false.
    value = os.environ.get("GITHUB_ACTIONS", "").lower()
    return "text" if value in ("", "0", "false") else "github"


def _add_files(parser: argparse.ArgumentParser) -> Any:
    """Adds the files of a plan or a lock, of which a command takes one."""
    files = parser.add_mutually_exclusive_group()
    files.add_argument(
        "--out",
        type=_new_file,
        help="write a plan or a lock to this file (default: print what was found)",
    )
    files.add_argument("--check", help="exit 1 if the target is not as this file says")
    return files


class _Command(NamedTuple):
    description: str
    example: str
    add_options: Callable[[argparse.ArgumentParser], None]


COMMANDS = {
    "run": _Command(
        "Runs a script; type errors name the lines. It, or with -m a module, runs as under "
        "python, with its output and exit status. Notes on type errors of JAX's name the "
        "leaves, the lines that promoted them and forced that, and what to write. At the "
        "end, standard error lists the functions that were compiled more than once, with "
        "what differs between the calls.",
        "dtypeguard run train.py --epochs 3",
        _add_run,
    ),
    "audit": _Command(
        "Names each leaf of the state, of the updates or of the carry of a step that "
        "changes its type, both types, and the line. The target is an optimizer or a "
        "function that makes one, with --inputs a step. Exits 1 if a leaf does, 2 if it "
        "cannot run, else 0.",
        "dtypeguard audit optax:adam --set learning_rate=1e-3, dtypeguard audit "
        "my_script.py:opt or dtypeguard audit my_script.py:train_step --inputs "
        "my_script.py:inputs",
        _add_audit,
    ),
    "precision": _Command(
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
        _add_precision,
    ),
    "lock": _Command(
        "Traces a step and lists, for each of its functions, the types of products, sums, "
        "casts and other arithmetic, and those of inputs and outputs. Nothing is run. "
        "Exits 1 if --check finds that the step is not as locked, 2 if it cannot run, else "
        "0.",
        "dtypeguard lock my_script.py:step --inputs my_script.py:inputs --check step.lock",
        _add_lock,
    ),
    "docs": _Command(
        "Prints a page of the documentation, as Markdown, or a file of one; without a "
        "name, the names of all, with titles. Exits 2 if there is no such page, else 0.",
        "dtypeguard docs explain",
        _add_name,
    ),
    "demo": _Command(
        "Runs ten small programs as they are, and with one call added. With a name, shows "
        "that one in full. Exits 1 if one fails with the call, else 0.",
        "dtypeguard demo prodigy",
        _add_name,
    ),
}


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of the command line."""

    def error(self, message: str) -> NoReturn:
        # argparse would end the process, of which a caller of `main` may be a part.
        raise UsageError(message)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = _Parser(
        prog="dtypeguard",
        description="Optimizers and steps that give back the dtypes they were given.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=command.description.partition(". ")[0],
            description=command.description,
            epilog=f"For example: {command.example}",
        )
        command.add_options(subparser)
    return parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Returns the options of a command line."""
    try:
        return parser().parse_args(words)
    except UsageError as error:
        command = words[0] if words else ""
        raise UsageError(f"{error}. {right(command)}") from None


def right(command: str) -> str:
    """Returns the sentence with which an error of a command ends."""
    # Whoever writes a file where a command stands most likely wants to run it.
    return f"Write for example: {COMMANDS.get(command, COMMANDS['run']).example}"
