"""What stands out in a report on a terminal: lines of source, and types.

rich does it where it is installed. It keeps `NO_COLOR`, and what its release knows of
terminals. Nothing here imports JAX.
"""

import importlib.util
import re
import sys
from collections.abc import Iterable
from typing import TextIO

_SOURCE_LINES = re.compile(r"[^\s(:]+\.py:\d+|Cell In\[\d+\], line \d+")
_TYPES = re.compile(r"\b(?:bfloat|float|u?int|complex)\d\w*(?:\[[\d,]*\])?")
_NAME = re.compile(r"^dtypeguard(?=:)", re.MULTILINE)


def is_colored(stream: TextIO) -> bool:
    """Returns whether a stream is a terminal, and rich is installed."""
    return stream.isatty() and importlib.util.find_spec("rich") is not None


def ansi(text: str, stream: TextIO) -> str:
    """Returns a text as a terminal shows it in color."""
    from rich.console import Console
    from rich.text import Text

    # No markup of rich's is read: `[1]` is a part of a path.
    rich_text = Text(text)
    rich_text.highlight_regex(_SOURCE_LINES, "cyan")
    rich_text.highlight_regex(_TYPES, "yellow")
    rich_text.highlight_regex(_NAME, "bold red")
    console = Console(file=stream)
    with console.capture() as captured:
        # Lines stay whole: a path that is cut can be neither clicked nor copied.
        console.print(rich_text, soft_wrap=True, end="")
    return captured.get()


def color_notes(errors: Iterable[BaseException]) -> None:
    """Gives the notes of dtypeguard the colors of the terminal that errors are shown on."""
    for error in errors:
        # In place: whoever prints the error reads this list.
        notes = getattr(error, "__notes__", [])
        for place, note in enumerate(notes):
            if isinstance(note, str) and note.startswith("dtypeguard: "):
                notes[place] = ansi(note, sys.stderr)
