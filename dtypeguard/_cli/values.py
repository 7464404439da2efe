"""Values of options, and the options that several commands have."""

import argparse
import math
from collections.abc import Sequence

PRINTED = "text", "json", "markdown", "html", "github"
# What --inputs names, where it is run.
ARGUMENTS = (
    "its arguments, FILE.py:NAME or MODULE:NAME: a tuple of them, a dict of them by name, "
    "or the only one; or a function that returns these"
)


def add_report(
    command: argparse.ArgumentParser, *forms: str, printed: Sequence[str] = PRINTED
) -> None:
    add = command.add_argument_group("the report").add_argument
    help = f"what is printed: {', '.join(printed)} (default: text"
    help += "; where GITHUB_ACTIONS is set github, annotations of lines" * (
        len(printed) > 2
    )
    add("--format", metavar="FORM", choices=printed, help=f"{help})")
    for form in forms:
        to = f"as {form}: to FILE, or printed"
        add(f"--{form}", metavar="FILE", nargs="?", const="-", help=to)
    add("--html", metavar="FILE", help="write one self-contained page")


def file(text: str) -> str:
    if not text:  # of a variable that is not set
        raise argparse.ArgumentTypeError("'' names no file")
    return text


def error(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a relative error: write a number from 0 up, such as 1e-3"
        )
    return number


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1, 2, 3, ...")
    return int(text)


def places(text: str) -> int | str | tuple[int | str, ...]:
    found = [int(x) if x.lstrip("-").isdecimal() else x for x in text.split(",")]
    return found[0] if len(found) == 1 else tuple(found)
