"""Standard output, on which a report stands alone, and the files that a command writes.

Nothing here imports JAX: a script may set variables that JAX reads.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from .._explain.colors import ansi, is_colored


@contextlib.contextmanager
def report_stream(owns_process: bool) -> Iterator[TextIO]:
    """A context that gives a stream for the report; all else goes to standard error.

    A reader of the report, such as `jq`, is to find nothing that a target prints.
    In a process of the command line's own that holds until the process ends: functions
    of `atexit` and late threads print as well.

    Args:
        owns_process: whether file descriptors may be changed for good.
    """
    if not owns_process:
        report = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):
            yield report
        return
    report = _descriptor_apart(sys.stdout)
    # A stream without a descriptor is not moved, so Python's own prints are sent away too.
    sys.stdout = sys.stderr
    yield report


def _descriptor_apart(stream: TextIO) -> TextIO:
    """Returns a stream in place of one whose file descriptor becomes standard error's.

    Child processes inherit the descriptor, and libraries in C write to it.
    """
    try:
        stream.flush()
        apart = os.dup(stream.fileno())
        os.dup2(sys.stderr.fileno(), stream.fileno())
    except (AttributeError, OSError, ValueError):  # a stream in memory, or none at all
        return stream
    return open(apart, "w", encoding=stream.encoding, errors=stream.errors)


def print_text(text: str, stream: TextIO) -> None:
    """Prints a text, in color where the stream is a terminal."""
    if is_colored(stream):
        text = ansi(text, stream)
    with to_reader(stream):
        print(text, file=stream)


@contextlib.contextmanager
def to_reader(stream: TextIO) -> Iterator[None]:
    """A context that prints: a reader such as `head` may have closed the pipe."""
    try:
        yield
        stream.flush()
    except BrokenPipeError:  # the rest goes nowhere; the status is that of the command
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_file(name: str, text: str) -> None:
    """Writes a text into a file."""
    # The same bytes on all systems: a lock is compared in pull requests.
    with open(name, "w", encoding="utf-8", newline="\n") as file:
        file.write(text.rstrip() + "\n")
