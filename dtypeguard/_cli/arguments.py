"""What the command line takes: its options, and which of them go together."""

import argparse
import os
from typing import NoReturn

from .. import __version__
from .run import HELP
from .target import FORMS, UsageError


class _Parser(argparse.ArgumentParser):
    """Ends its complaints with the right form, as all others end."""

    def error(self, message: str) -> NoReturn:
        super().error(f"{message}. {FORMS}")


def parser() -> argparse.ArgumentParser:
    """Reads all of it."""
    parser = _Parser(
        prog="dtypeguard",
        description="Optimizers and steps that give back the dtypes they were given.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "run", help="run a script; errors over types name the lines", description=HELP
    )
    audit = commands.add_parser(
        "audit",
        help="which leaves of an optimizer or a step drift, and on which line of source",
        description="With a target: which leaf of its state or updates, or of what a step "
        "carries, changes its type, from what to what, and on which line. Exits 0 if none "
        "does, else 1. Without: "
        "traces every optimizer of the installed optax, bare and guarded, over param and "
        "gradient dtypes, with x64 off and on: init, eval_shape, scan, cond, MultiSteps, "
        "compilations. Exits 0 if nothing guarded fails, else 1.",
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
    audit.add_argument("--x64", action="store_true", help="with jax_enable_x64")
    _add_optimizer(audit)
    _add_step(audit)
    _add_sweep(audit)
    _add_forms(audit)
    return parser


def _add_optimizer(audit: argparse.ArgumentParser) -> None:
    group = audit.add_argument_group("an optimizer")
    group.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument for the function that makes the target; may be repeated",
    )
    group.add_argument(
        "--params",
        metavar="DTYPES",
        help="dtypes dealt out over the target's params: bfloat16,float32 or bf16,f32 "
        "(default: float32)",
    )
    group.add_argument(
        "--grads",
        metavar="DTYPES",
        help="the same for the gradients (default: the params')",
    )


def _add_step(audit: argparse.ArgumentParser) -> None:
    group = audit.add_argument_group("a step")
    group.add_argument(
        "--step",
        action="store_true",
        help="the target is a step: a function that takes what it carries and returns it",
    )
    group.add_argument(
        "--inputs",
        metavar="INPUTS",
        help="a function that returns the arguments of the step, FILE.py:NAME or "
        "MODULE:NAME: a tuple of them, a dict of them by name, or the only one; traced and "
        "not run where it can be",
    )
    group.add_argument(
        "--carry",
        metavar="WHICH",
        type=_places,
        default=0,
        help="the argument that comes back, by position or name, or several: 0,1 or "
        "params,opt_state (default: 0)",
    )
    group.add_argument(
        "--returned",
        metavar="WHICH",
        type=_places,
        help="the item of the result that it comes back as, or as many (default: the "
        "whole result where that has its tree, else the first items)",
    )


def _add_sweep(audit: argparse.ArgumentParser) -> None:
    group = audit.add_argument_group("the sweep, without a target")
    group.add_argument(
        "--filter",
        metavar="PATTERN",
        default="",
        help="sweep only optimizers whose name has this in it; * and ? stand for anything",
    )
    group.add_argument(
        "--jobs",
        metavar="N",
        type=_positive,
        help="worker processes of the sweep (default: by size)",
    )


def _add_forms(audit: argparse.ArgumentParser) -> None:
    group = audit.add_argument_group("the report")
    for form in ("json", "markdown"):
        group.add_argument(
            f"--{form}",
            metavar="FILE",
            nargs="?",
            const="-",
            help=f"as {form}: to FILE, or printed",
        )
    group.add_argument("--html", metavar="FILE", help="write one self-contained page")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1, 2, 3, ...")
    return int(text)


def _places(text: str) -> int | str | tuple[int | str, ...]:
    places = [int(x) if x.lstrip("-").isdecimal() else x for x in text.split(",")]
    return places[0] if len(places) == 1 else tuple(places)


def check_options(arguments: argparse.Namespace) -> None:
    """Refuses options that are for something else than what was asked for.

    Raises:
        UsageError: tells what to write.
    """
    target = arguments.target
    step = f"dtypeguard audit {target or 'FILE.py:step'} --step --inputs FILE.py:inputs"
    of_sweep = _given(arguments, filter="", jobs=None)
    of_optimizer = _given(arguments, set=[], params=None, grads=None)
    of_step = _given(arguments, inputs=None, carry=0, returned=None)
    if target is None:
        _check_file_names(arguments)
        if arguments.step or of_step:
            raise UsageError(f"--step and {_STEP} are for one step. Write: {step}")
        if of_optimizer or _given(arguments, x64=False, markdown=None):
            raise UsageError(
                "--set, --params, --grads, --x64 and --markdown are for one optimizer. "
                "Write for example: dtypeguard audit optax:adam --set learning_rate=1e-3"
            )
    elif of_sweep:
        raise UsageError(
            f"{of_sweep[0]} is for the sweep, without a target. "
            f"Write: dtypeguard audit {target}"
        )
    elif arguments.step and of_optimizer:
        raise UsageError(
            f"{of_optimizer[0]} is for an optimizer. A step is given what its inputs are. "
            f"Write: {step}"
        )
    elif arguments.step and arguments.inputs is None:
        raise UsageError(f"a step needs a function that gives its arguments. Write: {step}")
    elif of_step and not arguments.step:
        raise UsageError(f"{_STEP} are for a step. Write: {step}")


_STEP = "--inputs, --carry and --returned"


def _given(arguments: argparse.Namespace, **defaults: object) -> list[str]:
    """Those of some options that were given."""
    return [
        f"--{name}"
        for name, default in defaults.items()
        if vars(arguments)[name] != default
    ]


def _check_file_names(arguments: argparse.Namespace) -> None:
    for form in ("json", "markdown", "html"):
        name = getattr(arguments, form) or ""
        if ":" in name and not os.path.isabs(name):
            raise UsageError(
                f"{name!r} was taken for the FILE of --{form}. Write the target first: "
                f"dtypeguard audit {name} --{form}"
            )
