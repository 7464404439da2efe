"""What the command line accepts: its options, and which of them go together."""

import argparse
import difflib
import os
import re
from collections.abc import Callable
from typing import Any, NoReturn

from .. import __version__
from .._demo.names import NAMES
from .load import DOCS_FORMS, FORMS, LOCK_FORMS, PLAN_FORMS, PRECISION_FORMS, UsageError
from .plan_options import add_plan
from .run import HELP
from .values import ARGUMENTS, add_report, error, file, places

_OF_OPTIMIZER = "set", "params", "grads"
_OF_STEP = "inputs", "carry", "returned"


_FORMS = {
    "precision": PRECISION_FORMS,
    "plan": PLAN_FORMS,
    "lock": LOCK_FORMS,
    "docs": DOCS_FORMS,
    "demo": "Write for example: dtypeguard demo prodigy",
}


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
        forms = _FORMS.get(command, FORMS)
        chosen = re.search(r"invalid choice: '([^']*)'", message)
        if chosen and command == self.prog:
            forms = _meant(chosen[1]) or forms
        super().error(f"{message}. {forms}")


def _meant(command: str) -> str:
    """What was probably meant by a command that does not exist; empty if not known."""
    others = {"check": "audit", "explain": "run", "measure": "precision", "try": "demo"}
    if command.endswith(".py"):
        return f"Did you mean dtypeguard run {command}?"
    words = ("audit", "demo", "docs", "lock", "plan", "precision", "run")
    close = difflib.get_close_matches(command, words, 1)
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
    demo = commands.add_parser(
        "demo",
        help="ten programs that fail, the lines, and what one call changes",
        description="Runs ten small programs, bare and with one call of dtypeguard's more. "
        "With a NAME, shows that one in full. Exits 1 if one fails with the call, else 0.",
    )
    demo.add_argument("name", metavar="NAME", nargs="?", choices=NAMES, help="of one")
    commands.add_parser(
        "run", help="run a script; type errors name the lines", description=HELP
    )
    audit = commands.add_parser(
        "audit",
        help="which leaves of an optimizer or a step drift, and on which line of source",
        description="With a target, names each leaf of the state, of the updates or of the "
        "carry of a step that changes its type, both types, and the line. Exits 1 if one "
        "does, 2 if it cannot run, else 0.",
        epilog="Examples: dtypeguard audit optax.contrib:prodigy --set learning_rate=1.0 "
        "--params bf16,f32 --grads f32 --x64; "
        "dtypeguard audit my_script.py:train_step --step --inputs my_script.py:inputs",
    )
    audit.add_argument(
        "target",
        metavar="TARGET",
        help="an optimizer or a function that makes one: optax:adam, "
        "my_package.optim:make_optimizer, my_script.py:opt; with --step a step: "
        "my_script.py:train_step",
    )
    audit.add_argument("--x64", action="store_true", help="turn jax_enable_x64 on")
    add = audit.add_argument_group("an optimizer").add_argument
    add(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument for the function that makes the target; may be repeated",
    )
    params = "dtypes for the target's params in turn: bfloat16,float32 or bf16,f32"
    tried = "default: without --grads several choices, until a leaf drifts; else float32"
    add("--params", metavar="DTYPES", help=f"{params} ({tried})")
    grads = "the same for the gradients, `updates` in Python (default: as params)"
    add("--grads", "--updates", metavar="DTYPES", help=grads)
    add = audit.add_argument_group("a step").add_argument
    add("--step", action="store_true", help="the target takes a carry and returns it")
    add(
        "--inputs",
        help="a function that returns the arguments of the step, FILE.py:NAME or "
        "MODULE:NAME: a tuple of them, a dict of them by name, or the only one; it is "
        "traced, and runs only if it does not trace",
    )
    add(
        "--carry",
        metavar="WHICH",
        type=places,
        default=0,
        help="the argument that comes back, by position or name, or several: 0,1 or "
        "params,opt_state (default: 0)",
    )
    add(
        "--returned",
        metavar="WHICH",
        type=places,
        help="the item of the result that it comes back as, or as many (default: the "
        "result itself if it has the same tree, else the first items)",
    )
    add_report(audit, "json", "markdown")
    _add_precision(commands.add_parser)
    add_plan(commands.add_parser)
    _add_lock(commands.add_parser)
    docs = commands.add_parser(
        "docs",
        help="a page of the documentation",
        description="Prints a page of the documentation, as Markdown, or a file of one; "
        "without a name, the names of all, with titles. Exits 2 if there is no such "
        "page, else 0.",
        epilog="Examples: dtypeguard docs explain; dtypeguard docs nnx.ipynb > nnx.ipynb",
    )
    docs.add_argument("name", metavar="NAME", nargs="?", help="of a page, such as explain")
    return parser


def _add_precision(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    precision = add_parser(
        "precision",
        help="which lines of a function lose precision, and what to compute wider",
        description="Runs a function as written and in wider dtypes. Names the "
        "lines that its error comes from, a small set of lines that is worth computing "
        "wider, and the lines that make it compute wider than necessary. Exits 1 if an "
        "output is not finite as written, the error is above --max-error or the reference "
        "is another computation, 2 if it cannot run, else 0.",
        epilog="Example: dtypeguard precision my_script.py:train_step --inputs "
        "my_script.py:inputs --html precision.html",
    )
    add = precision.add_argument
    add(
        "target",
        metavar="TARGET",
        help="a function of arrays, FILE.py:NAME or MODULE:NAME: a loss, a gradient, a "
        "train step, some steps in a scan",
    )
    add(
        "--inputs",
        metavar="INPUTS",
        required=True,
        help=ARGUMENTS,
    )
    wide = "the dtype to compare with (default: float32, or float64 if all is in float32)"
    add("--wide", metavar="DTYPE", help=wide)
    narrow = "run it as if all of it were in this dtype, such as bf16"
    add("--narrow", metavar="DTYPE", help=narrow)
    products = "round float32 products as another device does: tpu, a100, bfloat16, ..."
    add("--matmul-precision", metavar="NAME", help=products)
    bound = "the relative error that the lines to compute wider have to reach"
    add("--tolerance", metavar="X", type=error, help=bound)
    add("--max-error", metavar="X", type=error, help="exit 1 if the error is above")
    reference = (
        "what the outputs should be: an .npz file with an array for each path of an "
    )
    reference += "output ('out' for the only one), or FILE.py:NAME of such a tree or of a "
    reference += "function; exit 1 if one is another computation"
    add("--reference", metavar="FILE", help=reference)
    add_report(precision, "json")


def _add_lock(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    lock = add_parser(
        "lock",
        help="what a step computes in, in a file that reviews read and CI checks",
        description="Traces a step and lists, for each of its functions, the types of "
        "products, sums, casts and other arithmetic, and those of inputs, carry and "
        "outputs. Nothing is run. Exits 1 if --check finds that the step is not as locked, "
        "2 if it cannot run, else 0.",
        epilog="Example: dtypeguard lock train.py:step --inputs train.py:inputs --check "
        "step.lock",
    )
    add = lock.add_argument
    add("target", metavar="TARGET", help="a step, FILE.py:NAME or MODULE:NAME")
    add(
        "--inputs",
        metavar="INPUTS",
        required=True,
        help=f"{ARGUMENTS}. jax.ShapeDtypeStructs suffice",
    )
    form = lock.add_mutually_exclusive_group().add_argument
    form("--out", metavar="FILE", type=file, help="write a new lock (default: print it)")
    form("--check", metavar="FILE", type=file, help="exit 1 if the step is not as locked")
    update = "write the lock anew and print what changed"
    form("--update", metavar="FILE", type=file, help=update)
    which = "that comes back, by position or name, or several: 0,1 (default: 0, if it does)"
    add("--carry", metavar="WHICH", type=places, default=0, help=f"the argument {which}")
    which = "the item of the result that it comes back as, or as many"
    add("--returned", metavar="WHICH", type=places, help=which)
    add("--x64", action="store_true", help="turn jax_enable_x64 on")
    add_report(lock, "json")


def check_options(arguments: argparse.Namespace) -> None:
    """Refuses options of `audit` for something else than what it is asked for.

    Raises:
        UsageError: the message has the right form.
    """
    target, defaults = arguments.target, vars(parser().parse_args(["audit", "x"]))
    _check_file_names(arguments)
    step = f"dtypeguard audit {target} --step --inputs FILE.py:inputs"
    if arguments.step:
        use, names = "an optimizer; --inputs sets the dtypes of a step", _OF_OPTIMIZER
    else:
        use, names = "a step", _OF_STEP
    given = [f"--{x}" for x in names if vars(arguments)[x] != defaults[x]]
    if given:
        raise UsageError(f"{given[0]} is for {use}. Write: {step}")
    if arguments.step and arguments.inputs is None:
        raise UsageError(f"a step needs a function that gives its arguments. Write: {step}")


def report_files(arguments: argparse.Namespace) -> dict[str, str]:
    """The files of the report by their form; `-` is standard output."""
    named = ((form, vars(arguments).get(form)) for form in ("json", "markdown", "html"))
    return {form: name for form, name in named if name is not None}


def _check_file_names(arguments: argparse.Namespace) -> None:
    for form, name in report_files(arguments).items():
        if ":" in name and not os.path.isabs(name):
            raise UsageError(
                f"{name!r} was taken for the FILE of --{form}. Write the target first: "
                f"dtypeguard audit {name} --{form}"
            )
