"""Prints and writes: in colour on a terminal, plain for a program that reads.

Nothing here imports JAX.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from .._explain.colors import is_colored, marked


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
