"""Shows what long work is at: one line on a terminal, which is gone when it is done.

In a pipe, a file or a notebook nothing is shown, or a line now and then.
"""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Show = Callable[[str], None]
_T = TypeVar("_T")
_CLEAR = "\r\033[K"


@contextlib.contextmanager
def status(progress: bool | None = None, every: float = math.inf) -> Iterator[Show]:
    """A function that shows on standard error what is being done.

    A pipe gets lines with `progress=True`, or one after `every` seconds without one.
    """
    stream, last = sys.stderr, time.monotonic()
    is_terminal = progress is not False and stream.isatty()

    def show(text: str) -> None:
        nonlocal last
        is_due = progress or (progress is None and time.monotonic() - last >= every)
        if is_terminal:
            print(f"{_CLEAR}{text}", end="", file=stream, flush=True)
        elif is_due:
            print(text, file=stream, flush=True)
            last = time.monotonic()

    try:
        yield show
    finally:
        if is_terminal:
            print(_CLEAR, end="", file=stream, flush=True)


def counted(items: Iterable[_T], total: int, show: Show, what: str) -> Iterator[_T]:
    """Yields items, and shows how many of them are done."""
    for number, item in enumerate(items, start=1):
        show(f"{what} {number:,}/{total:,}")
        yield item


def check_progress(owner: str, progress: object) -> None:
    """Checks that it is a bool or None."""
    if not isinstance(progress, (bool, type(None))):
        raise TypeError(
            f"{owner} got progress={progress!r}. Write True, False, or None for where "
            "somebody looks: on a terminal."
        )
