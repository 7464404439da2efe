"""What the command line accepts, in three tables, and what is asked for.

Nothing here imports JAX: a script may set variables that JAX reads.
"""

import argparse
import ast
import contextlib
import math
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from .. import __version__


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    literal = value.title() if value in ("true", "false", "none") else value
    with contextlib.suppress(ValueError, SyntaxError):
        return name, ast.literal_eval(literal)
    return name, value


_LETTERS = {"bf": "bfloat", "f": "float", "c": "complex"}


def _dtypes(text: str) -> tuple[str, ...]:
    """The dtypes of a list, in full or as in a jaxpr, such as `bf16,float32`."""
    import jax.numpy as jnp  # not before: a script may set variables that JAX reads

    found = []
    for name in text.split(","):
        full = re.sub(r"^(bf|f|c)(?=\d)", lambda x: _LETTERS[x[0]], name.strip())
        try:
            found.append(str(jnp.dtype(full)))
        except TypeError:
            raise argparse.ArgumentTypeError(f"{name!r} is not a dtype") from None
        if not jnp.issubdtype(full, jnp.inexact):
            raise argparse.ArgumentTypeError(f"{name} is not floating or complex")
    return tuple(found)


def _dtype(text: str) -> Any:
    import jax.numpy as jnp  # as above

    return jnp.dtype(",".join(_dtypes(text)))


def _error(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a relative error: write a number from 0 up, such as 1e-3"
    )


def _places(text: str) -> int | str | tuple[int | str, ...]:
    found = [int(x) if x.lstrip("-").isdecimal() else x for x in text.split(",")]
    return found[0] if len(found) == 1 else tuple(found)


# With a `+`, another option of that name.
_HELP = {
    "target": "what is looked at: FILE.py:NAME or MODULE:NAME",
    "script": "the script or module, and its arguments",
    "name": "of a page, a file or a scene; of docs, a word as well",
    "-m": "SCRIPT is a module",
    "--all": "name every leaf, where notes and list otherwise fit on a screen",
    "--json+": "end standard output with what was found, as json",
    "--inputs": "its arguments, FILE.py:NAME or MODULE:NAME: a tuple of them, a dict of "
    "them by name, or the only one; or a function that returns these",
    "--x64": "turn jax_enable_x64 on",
    "--set": "name=value for the function that makes the optimizer; may be repeated",
    "--params": "dtypes for the optimizer's params in turn: bfloat16,float32 or bf16,f32 "
    "(default: without --grads several choices, until a leaf drifts; else float32)",
    "--grads": "the same for the gradients (default: as params)",
    "--carry": "the argument of a step that comes back, by position or name, or several: "
    "0,1 or params,opt_state (default: 0)",
    "--returned": "the item of the result that it comes back as, or as many (default: the "
    "result itself if it has the same tree, else the first items)",
    "--wide": "the dtype to compare with (default: float32, or float64 if all is float32)",
    "--narrow": "run it as if all of it were in this dtype, such as bf16; with "
    "--tolerance search which lines have to stay wide",
    "--matmul-precision": "round float32 products as another device does: tpu, a100, ...",
    "--tolerance": "the relative error that the lines to compute wider have to reach "
    "(with --check, by default that of the plan)",
    "--max-error": "exit 1 if the error is above",
    "--reference": "what the outputs should be: an .npz file with an array for each path "
    "of an output ('out' for the only one), or FILE.py:NAME of such a tree or of a "
    "function; exit 1 if one is another computation",
    "--held-out": "as --inputs, of which a search only says the error; may be repeated",
    "--out": "write a plan or a lock to this file (default: print what was found)",
    "--check": "exit 1 if the target is not as this file says",
    "--update": "write the lock in this file anew and print what changed",
    "--json": "as json: to this file, or printed",
    "--format": "what is printed: text, json or github, annotations of lines (default: "
    "text; where GITHUB_ACTIONS is set github)",
}
_FLAG = {"action": "store_true"}
_LIST = {"action": "append", "default": []}
# What argparse is to know of an option beside its help.
_SETTINGS: dict[str, dict[str, Any]] = {
    "target": {"metavar": "TARGET"},
    "script": {"metavar": "SCRIPT ...", "nargs": argparse.REMAINDER},
    "name": {"metavar": "NAME", "nargs": "?"},
    "-m": {**_FLAG, "dest": "is_module"},
    "--all": _FLAG,
    "--json+": {"action": "store_const", "const": "json", "dest": "format"},
    "--x64": _FLAG,
    "--set": {**_LIST, "type": _setting},
    "--params": {"type": _dtypes},
    "--grads": {"type": _dtypes},
    "--carry": {"type": _places, "default": 0},
    "--returned": {"type": _places},
    "--wide": {"type": _dtype},
    "--narrow": {"type": _dtype},
    "--tolerance": {"type": _error},
    "--max-error": {"type": _error},
    "--held-out": _LIST,
    "--json": {"nargs": "?", "const": "-"},
    "--format": {"choices": ("text", "json", "github")},
    "--step": _FLAG,
}
# The option of 0.1 that goes with a later minor version; it does nothing.
_DEPRECATED = "--step"
# Words of earlier versions, and what to write in their place.
_REPLACED = {
    "plan": "write dtypeguard precision, and --out for the file of the plan",
    "sweep": "it is part of dtypeguard's own tests now. For your own optimizer write "
    "dtypeguard.testing.check_contract(optimizer) in a test, or run dtypeguard audit "
    "FILE.py:optimizer",
    "--updates": "write --grads",
    "--also": "write --held-out",
    "--markdown": "text is printed, and --json is for programs",
    "--budget": "a search ends by itself",
}


class _Command(NamedTuple):
    """A command: what its help says, and its options; one with `!` is required."""

    description: str
    example: str
    options: str


COMMANDS = {
    "run": _Command(
        "Runs a script; type errors name the lines. It, or with -m a module, runs as under "
        "python, with its output and exit status. Notes on type errors of JAX's name the "
        "leaves, the lines that promoted them and forced that, and what to write. At the "
        "end, standard error lists the functions that were compiled more than once, with "
        "what differs between the calls.",
        "dtypeguard run train.py --epochs 3",
        "--all --json+ --format -m script",
    ),
    "audit": _Command(
        "Names each leaf of the state, of the updates or of the carry of a step that "
        "changes its type, both types, and the line. The target is an optimizer or a "
        "function that makes one, with --inputs a step. Exits 1 if a leaf does, 2 if it "
        "cannot run, else 0.",
        "dtypeguard audit optax:adam --set learning_rate=1e-3, dtypeguard audit "
        "my_script.py:opt or dtypeguard audit my_script.py:train_step --inputs "
        "my_script.py:inputs",
        "target --inputs --x64 --set --params --grads --carry --returned --json --format",
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
        "target --inputs! --x64 --wide --narrow --matmul-precision --tolerance --max-error "
        "--reference --held-out --json --format --out --check",
    ),
    "lock": _Command(
        "Traces a step and lists, for each of its functions, the types of products, sums, "
        "casts and other arithmetic, and those of inputs and outputs. Nothing is run. "
        "Exits 1 if --check finds that the step is not as locked, 2 if it cannot run, else "
        "0.",
        "dtypeguard lock my_script.py:step --inputs my_script.py:inputs --check step.lock",
        "target --inputs! --x64 --json --format --out --check --update",
    ),
    "docs": _Command(
        "Prints a page of the documentation, as Markdown, or a file of one; without a "
        "name, the names of all, with titles. Exits 2 if there is no such page, else 0.",
        "dtypeguard docs explain",
        "name",
    ),
    "demo": _Command(
        "Runs ten small programs as they are, and with one call added. With a name, shows "
        "that one in full. Exits 1 if one fails with the call, else 0.",
        "dtypeguard demo prodigy",
        "name",
    ),
}
_EXCLUSIVE = "--out", "--check", "--update"


class UsageError(Exception):
    """The command line asks for what cannot be done; the message shows the right form."""


def right(command: str) -> str:
    """The sentence with which an error of a command ends."""
    return f"Write for example: {COMMANDS.get(command, COMMANDS['audit']).example}"


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Returns what a command line asks for; words of earlier versions are errors."""
    command = words[0] if words else ""
    # All that stands behind `run` belongs to the script.
    own_words = [] if command == "run" else words
    for position, word in enumerate(own_words):
        name = word.partition("=")[0]
        if name in _REPLACED and (position == 0 or name.startswith("-")):
            raise UsageError(f"{name} is gone: {_REPLACED[name]}.")
    if _DEPRECATED in own_words:
        print(
            f"dtypeguard: {_DEPRECATED} is not needed: --inputs says that a target is a "
            "step.",
            file=sys.stderr,
        )
    try:
        return parser().parse_args(words)
    except UsageError as error:
        is_script = command.endswith(".py")
        write = f"Did you mean dtypeguard run {command}?" if is_script else right(command)
        raise UsageError(f"{error}. {write}") from None


class _Parser(argparse.ArgumentParser):
    """Its errors are those of the command line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = _Parser(
        prog="dtypeguard",
        description="Optimizers and steps that give back the dtypes they were given.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        made = commands.add_parser(
            name,
            help=command.description.partition(". ")[0],
            description=command.description,
            epilog=f"For example: {command.example}",
        )
        options = command.options.split()
        files = made.add_mutually_exclusive_group() if "--out" in options else made
        if "target" in options:
            options.append(_DEPRECATED)
        for word in options:
            option, group = word.rstrip("!"), files if word in _EXCLUSIVE else made
            text, settings = _HELP.get(option, argparse.SUPPRESS), _SETTINGS.get(option, {})
            action = group.add_argument(option.rstrip("+"), help=text, **settings)
            action.required |= option != word
    return parser


SILENCE = 10.0  # seconds, after which a pipe is told what a command is at


def default_form() -> str:
    """The form where none is asked for: that of GitHub in its workflows."""
    is_set = os.environ.get("GITHUB_ACTIONS", "").lower() not in ("", "0", "false")
    return "github" if is_set else "text"
