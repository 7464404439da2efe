"""What the command line accepts: its options, and which of them go together."""

import argparse
import os
from typing import NoReturn

from .. import __version__
from .load import FORMS, UsageError
from .run import HELP

_OF_OPTIMIZER = "set", "params", "grads"
_OF_STEP = "inputs", "carry", "returned"
_OF_SWEEP = "filter", "jobs"
_FORMS_OF_REPORT = "json", "markdown", "html"


class _Parser(argparse.ArgumentParser):
    """Ends its errors with the right form, as all others end."""

    def error(self, message: str) -> NoReturn:
        super().error(f"{message}. {FORMS}")


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
    audit = commands.add_parser(
        "audit",
        help="which leaves of an optimizer or a step drift, and on which line of source",
        description="With a target, names each leaf of the state, of the updates or of the "
        "carry of a step that changes its type, both types, and the line. Exits 1 if one "
        "does, else 0. Without a target, traces every optimizer of the installed optax, "
        "bare and guarded, over dtypes of params and gradients, with x64 off and on: init, "
        "eval_shape, scan, cond, MultiSteps, compilations. Exits 1 if a guarded optimizer "
        "fails, else 0.",
        epilog="Examples: dtypeguard audit optax.contrib:prodigy --set learning_rate=1.0 "
        "--params bf16,f32 --grads f32 --x64; "
        "dtypeguard audit my_script.py:train_step --step --inputs my_script.py:inputs",
    )
    audit.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
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
    add("--params", metavar="DTYPES", help=f"{params} (default: float32)")
    add("--grads", metavar="DTYPES", help="the same for the gradients (default: as params)")
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
        type=_places,
        default=0,
        help="the argument that comes back, by position or name, or several: 0,1 or "
        "params,opt_state (default: 0)",
    )
    add(
        "--returned",
        metavar="WHICH",
        type=_places,
        help="the item of the result that it comes back as, or as many (default: the "
        "result itself if it has the same tree, else the first items)",
    )
    add = audit.add_argument_group("the sweep, without a target").add_argument
    pattern = "sweep only optimizers whose name contains this; * and ? match anything"
    add("--filter", metavar="PATTERN", default="", help=pattern)
    add("--jobs", metavar="N", type=_positive, help="worker processes (default: by size)")
    add = audit.add_argument_group("the report").add_argument
    for form in ("json", "markdown"):
        to = f"as {form}: to FILE, or printed"
        add(f"--{form}", metavar="FILE", nargs="?", const="-", help=to)
    add("--html", metavar="FILE", help="write one self-contained page")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1, 2, 3, ...")
    return int(text)


def _places(text: str) -> int | str | tuple[int | str, ...]:
    places = [int(x) if x.lstrip("-").isdecimal() else x for x in text.split(",")]
    return places[0] if len(places) == 1 else tuple(places)


def check_options(arguments: argparse.Namespace) -> None:
    """Refuses options of something else than what the command line asks for.

    Raises:
        UsageError: with what to write.
    """
    defaults = vars(parser().parse_args(["audit"]))

    def given(*names: str) -> list[str]:
        return [f"--{x}" for x in names if vars(arguments)[x] != defaults[x]]

    target = arguments.target
    step = f"dtypeguard audit {target or 'FILE.py:step'} --step --inputs FILE.py:inputs"
    of_step = "--inputs, --carry and --returned"
    if target is None:
        _check_file_names(arguments)
        if given("step", *_OF_STEP):
            raise UsageError(f"--step and {of_step} are for one step. Write: {step}")
        if given(*_OF_OPTIMIZER, "x64", "markdown"):
            raise UsageError(
                "--set, --params, --grads, --x64 and --markdown are for one optimizer. "
                "Write for example: dtypeguard audit optax:adam --set learning_rate=1e-3"
            )
    elif of_sweep := given(*_OF_SWEEP):
        raise UsageError(
            f"{of_sweep[0]} is for the sweep, without a target. "
            f"Write: dtypeguard audit {target}"
        )
    elif arguments.step and (of_optimizer := given(*_OF_OPTIMIZER)):
        raise UsageError(
            f"{of_optimizer[0]} is for an optimizer; --inputs sets the dtypes of a step. "
            f"Write: {step}"
        )
    elif arguments.step and arguments.inputs is None:
        raise UsageError(f"a step needs a function that gives its arguments. Write: {step}")
    elif given(*_OF_STEP) and not arguments.step:
        raise UsageError(f"{of_step} are for a step. Write: {step}")


def report_files(arguments: argparse.Namespace) -> dict[str, str]:
    """The files of the report by their form; `-` is standard output."""
    named = {form: getattr(arguments, form) for form in _FORMS_OF_REPORT}
    return {form: name for form, name in named.items() if name is not None}


def _check_file_names(arguments: argparse.Namespace) -> None:
    for form, name in report_files(arguments).items():
        if ":" in name and not os.path.isabs(name):
            raise UsageError(
                f"{name!r} was taken for the FILE of --{form}. Write the target first: "
                f"dtypeguard audit {name} --{form}"
            )
