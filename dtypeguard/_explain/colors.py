"""What stands out in a report on a terminal: lines of source, and types.

rich does it where it is installed. It keeps `NO_COLOR`, and what its release knows of
terminals. Nothing here imports JAX.
"""

import contextlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.text import Text

MARKS = (
    (re.compile(r"[^\s(:]+\.py:\d+|Cell In\[\d+\], line \d+"), "cyan"),
    (re.compile(r"\b(?:bfloat|float|u?int|complex)\d\w*(?:\[[\d,]*\])?"), "yellow"),
    (re.compile(r"^dtypeguard(?=:)", re.MULTILINE), "bold red"),
)


def is_colored(stream: TextIO) -> bool:
    """Whether a stream is a terminal, and rich is installed."""
    return stream.isatty() and importlib.util.find_spec("rich") is not None


def marked(text: str, style: str = "") -> "Text":
    """A text for rich, with what stands out."""
    from rich.text import Text

    made = Text(text, style)
    for pattern, mark in MARKS[: 1 if style else None]:
        made.highlight_regex(pattern, mark)
    return made


def ansi(text: str, stream: TextIO) -> str:
    """A text as a terminal shows it in color."""
    from rich.console import Console

    console = Console(file=stream)
    with console.capture() as captured:
        console.print(marked(text), soft_wrap=True, end="")
    return captured.get()


@contextlib.contextmanager
def colored_notes(error: BaseException | None) -> Iterator[None]:
    """A context in which the notes of dtypeguard have colors on a terminal."""
    before: list[tuple[list[object], list[object]]] = []
    while error is not None and len(before) < 20 and is_colored(sys.stderr):
        notes = getattr(error, "__notes__", None)
        if type(notes) is list:
            before.append((notes, [*notes]))
            is_own = lambda note: type(note) is str and note.startswith("dtypeguard: ")
            notes[:] = [ansi(x, sys.stderr) if is_own(x) else x for x in notes]
        error = error.__cause__ or error.__context__
    try:
        yield
    finally:
        for notes, values in reversed(before):
            notes[:] = values
