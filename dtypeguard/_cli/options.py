"""What the command line accepts, in two tables, and how it prints and writes.

Nothing here imports JAX: a script may set variables that JAX reads.
"""

import argparse
import ast
import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

from .. import __version__
from .._explain.colors import is_colored, marked

FORMS = "text", "json", "github"
# Of the demo; each is a file in `scenes/`.
SCENES = (
    "prodigy",
    "schedule_free",
    "lbfgs",
    "fromage",
    "zero_nans",
    "failing_scan",
    "compiles_again",
    "stalled_loss",
    "as_on_a_tpu",
    "lost_cast",
)


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    if value in ("true", "false", "none"):  # as strings, even "false" is true
        raise argparse.ArgumentTypeError(
            f"{text!r} would be a string. Write: --set {name}={value.title()}"
        )
    with contextlib.suppress(ValueError, SyntaxError):
        return name, ast.literal_eval(value)
    return name, value


def _dtypes(text: str) -> tuple[str, ...]:
    """The dtypes of a list, in full or as in a jaxpr, such as `bf16,float32`."""
    import jax.numpy as jnp  # not before: a script may set variables that JAX reads

    found = []
    for name in text.split(","):
        short = re.fullmatch(r"(bf|f|c)(\d+.*)", name.strip())
        full = _LETTERS[short[1]] + short[2] if short else name.strip()
        try:
            found.append(str(jnp.dtype(full)))
        except TypeError:
            raise argparse.ArgumentTypeError(f"{name!r} is not a dtype") from None
        if not jnp.issubdtype(full, jnp.inexact):
            raise argparse.ArgumentTypeError(f"{name} is not floating or complex")
    return tuple(found)


_LETTERS = {"bf": "bfloat", "f": "float", "c": "complex"}


def _dtype(text: str) -> Any:
    import jax.numpy as jnp  # as above

    return jnp.dtype(",".join(_dtypes(text)))


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


# By name: its metavar, its help, and what else argparse is to know. With a `+`, another
# one of that name.
_OPTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "script": (
        "SCRIPT ...",
        "the script or module, and its arguments",
        {"nargs": argparse.REMAINDER},
    ),
    "-m": ("", "SCRIPT is a module", {"action": "store_true", "dest": "is_module"}),
    "--all": (
        "",
        "name every leaf, where notes and list otherwise fit on a screen",
        {"action": "store_true"},
    ),
    "--json+": (
        "",
        "end standard output with what was found, as json",
        {"action": "store_const", "const": "json", "dest": "format"},
    ),
    "name": ("NAME", "of a page or a file, or a word", {"nargs": "?"}),
    "name+": ("NAME", "of a scene", {"nargs": "?", "choices": SCENES}),
    "--inputs": (
        "INPUTS",
        "its arguments, FILE.py:NAME or MODULE:NAME: a tuple of them, a dict of them by "
        "name, or the only one; or a function that returns these",
        {},
    ),
    "--x64": ("", "turn jax_enable_x64 on", {"action": "store_true"}),
    "--set": (
        "NAME=VALUE",
        "an argument for the function that makes the optimizer; may be repeated",
        {"action": "append", "type": _setting, "default": []},
    ),
    "--params": (
        "DTYPES",
        "dtypes for the optimizer's params in turn: bfloat16,float32 or bf16,f32 "
        "(default: without --grads several choices, until a leaf drifts; else float32)",
        {"type": _dtypes},
    ),
    "--grads": (
        "DTYPES",
        "the same for the gradients (default: as params)",
        {"type": _dtypes},
    ),
    "--carry": (
        "WHICH",
        "the argument of a step that comes back, by position or name, or several: 0,1 or "
        "params,opt_state (default: 0)",
        {"type": _places, "default": 0},
    ),
    "--returned": (
        "WHICH",
        "the item of the result that it comes back as, or as many (default: the result "
        "itself if it has the same tree, else the first items)",
        {"type": _places},
    ),
    "--wide": (
        "DTYPE",
        "the dtype to compare with (default: float32, or float64 if all is in float32)",
        {"type": _dtype},
    ),
    "--narrow": (
        "DTYPE",
        "run it as if all of it were in this dtype, such as bf16; with --tolerance search "
        "which lines have to stay wide",
        {"type": _dtype},
    ),
    "--matmul-precision": (
        "NAME",
        "round float32 products as another device does: tpu, a100, bfloat16, ...",
        {},
    ),
    "--tolerance": (
        "X",
        "the relative error that the lines to compute wider have to reach (with --check, "
        "by default that of the plan)",
        {"type": _error},
    ),
    "--max-error": ("X", "exit 1 if the error is above", {"type": _error}),
    "--reference": (
        "FILE",
        "what the outputs should be: an .npz file with an array for each path of an output "
        "('out' for the only one), or FILE.py:NAME of such a tree or of a function; exit 1 "
        "if one is another computation",
        {},
    ),
    "--held-out": (
        "INPUTS",
        "arguments that a search does not see: their errors stand beside; may be repeated",
        {"action": "append", "default": []},
    ),
    "--out": ("FILE", "write it (default: print it)", {}),
    "--check": ("FILE", "exit 1 if the target is not as this file says", {}),
    "--update": ("FILE", "write the lock anew and print what changed", {}),
    "--json": ("FILE", "as json: to FILE, or printed", {"nargs": "?", "const": "-"}),
    "--format": (
        "FORM",
        f"what is printed: {', '.join(FORMS)} (default: text; where GITHUB_ACTIONS is set "
        "github, annotations of lines)",
        {"choices": FORMS},
    ),
}
# Options of 0.1 that go with a later minor version, and what serves in their place.
_REPLACED: dict[str, tuple[dict[str, Any], str]] = {
    "--step": ({"action": "store_true"}, ""),  # which --inputs say
    "--updates": ({"dest": "grads", "type": _dtypes}, ""),
    "--markdown": ({"nargs": "?"}, "text is printed, and --json is for programs"),
    "--also": (
        {"action": "append", "default": []},
        "let --inputs name a list of arguments",
    ),
    "--budget": ({"type": int}, "a search ends by itself"),
}


class _Command(NamedTuple):
    """A command: what its help says, and its options; one with `!` is required."""

    description: str
    example: str
    target: str = ""
    options: str = ""
    replaced: str = ""
    exclusive: str = ""


COMMANDS = {
    "run": _Command(
        "Runs a script; type errors name the lines. It, or with -m a module, runs as under "
        "python, with its output and exit status. Notes on type errors of JAX's name the "
        "leaves, the lines that promoted them and forced that, and what to write. At the "
        "end, standard error lists the functions that were compiled more than once, with "
        "what differs between the calls.",
        "dtypeguard run train.py --epochs 3",
        options="--all --json+ --format -m script",
    ),
    "audit": _Command(
        "Names each leaf of the state, of the updates or of the carry of a step that "
        "changes its type, both types, and the line. With --inputs the target is a step, "
        "else an optimizer. Exits 1 if a leaf does, 2 if it cannot run, else 0.",
        "dtypeguard audit optax:adam --set learning_rate=1e-3, dtypeguard audit "
        "my_script.py:opt or dtypeguard audit my_script.py:train_step --inputs "
        "my_script.py:inputs",
        "an optimizer or a function that makes one: optax:adam, my_script.py:opt, "
        "my_package.optim:make_optimizer; or with --inputs a step",
        "--inputs --x64 --set --params --grads --carry --returned --json --format",
        "--step --updates --markdown",
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
        "a function of arrays, FILE.py:NAME or MODULE:NAME: a loss, a gradient, a train "
        "step, some steps in a scan",
        "--inputs! --x64 --wide --narrow --matmul-precision --tolerance --max-error "
        "--reference --held-out --json --format",
        "--also --budget",
        "--out --check",
    ),
    "lock": _Command(
        "Traces a step and lists, for each of its functions, the types of products, sums, "
        "casts and other arithmetic, and those of inputs and outputs. Nothing is run. "
        "Exits 1 if --check finds that the step is not as locked, 2 if it cannot run, else "
        "0.",
        "dtypeguard lock my_script.py:step --inputs my_script.py:inputs --check step.lock",
        "a step, FILE.py:NAME or MODULE:NAME",
        "--inputs! --x64 --json --format",
        "",
        "--out --check --update",
    ),
    "docs": _Command(
        "Prints a page of the documentation, as Markdown, or a file of one; without a "
        "name, the names of all, with titles. Exits 2 if there is no such page, else 0.",
        "dtypeguard docs explain",
        options="name",
    ),
    "demo": _Command(
        "Runs ten small programs as they are, and with one call added. With a "
        "NAME, shows that one in full. Exits 1 if one fails with the call, else 0.",
        "dtypeguard demo prodigy",
        options="name+",
    ),
}


def right(command: str) -> str:
    """The sentence with which an error of a command ends."""
    return f"Write for example: {COMMANDS.get(command, COMMANDS['audit']).example}"


class _Parser(argparse.ArgumentParser):
    """Ends its errors with the right form, like all errors of the command line."""

    def error(self, message: str) -> NoReturn:
        script = re.search(r"invalid choice: '([^']*\.py)'", message)
        meant = f"Did you mean dtypeguard run {script[1]}?" if script else ""
        super().error(f"{message}. {meant or right(self.prog.rpartition(' ')[2])}")


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
        if command.target:
            made.add_argument("target", metavar="TARGET", help=command.target)
        for option in command.options.split():
            _add(made, option)
        for option in command.replaced.split():
            how, _ = _REPLACED[option]
            made.add_argument(option, **how, help=argparse.SUPPRESS)
        group = made.add_mutually_exclusive_group() if command.exclusive else made
        for option in command.exclusive.split():
            _add(group, option)
    return parser


def _add(group: argparse._ActionsContainer, option: str) -> None:
    metavar, text, how = _OPTIONS[option.rstrip("!")]
    settings: dict[str, Any] = how | ({"metavar": metavar} if metavar else {})
    action = group.add_argument(option.rstrip("!+"), help=text, **settings)
    action.required |= option.endswith("!")


def say_what_is_replaced(command: str, words: list[str]) -> None:
    """Says of options of 0.1 what serves in their place."""
    for word in words:
        name = word.partition("=")[0]
        if name in COMMANDS[command].replaced.split() and (instead := _REPLACED[name][1]):
            print(f"dtypeguard: {name} is deprecated: {instead}.", file=sys.stderr)


class UsageError(Exception):
    """The command line asks for what cannot be done; the message shows the right form."""


SILENCE = 10.0  # seconds, after which a pipe is told what a command is at
Write = Callable[..., None]


def default_form() -> str:
    """The form where none is asked for: that of GitHub in its workflows."""
    is_set = os.environ.get("GITHUB_ACTIONS", "").lower() not in ("", "0", "false")
    return "github" if is_set else "text"


def writer() -> Write:
    """A function that prints a text, in a style of rich where it can."""
    if not is_colored(sys.stdout):
        return lambda text, style="": write("-", text)
    from rich.console import Console

    console = Console()
    return lambda text, style="": console.print(marked(text, style), soft_wrap=True)


def write(name: str, text: str) -> None:
    """Writes a text into a file, or with `-` on standard output."""
    if name == "-":
        with to_reader():
            print(text)
        return
    with open(name, "w", encoding="utf-8", newline="\n") as file:
        file.write(text.rstrip() + "\n")


@contextlib.contextmanager
def to_reader() -> Iterator[None]:
    """A context that prints: a reader such as `head` may have closed the pipe."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # the rest goes nowhere; the status is that of the command
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
