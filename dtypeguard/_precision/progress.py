"""Shows what long work is at: one line on a terminal or below a cell of a notebook.

Nothing is left when the work is done. In a pipe or a file nothing is shown, or a line now
and then.
"""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO, TypeVar

Show = Callable[[str], None]
_T = TypeVar("_T")
_CLEAR = "\r\033[K"


@contextlib.contextmanager
def status(progress: bool | None = None, every: float = math.inf) -> Iterator[Show]:
    """A function that shows on standard error, or below the cell, what is being done.

    A pipe gets lines with `progress=True`, or one after `every` seconds without one.
    """
    show, clear = _ways(progress, every)
    try:
        yield show
    finally:
        clear()


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
            "somebody looks: on a terminal and in a notebook."
        )


def _ways(progress: bool | None, every: float) -> tuple[Show, Callable[[], None]]:
    """How to show a text, and how to end."""
    stream, nothing = sys.stderr, lambda: None
    if progress is False:
        return lambda text: None, nothing
    if in_kernel():
        return _below_the_cell()
    if stream.isatty():
        write = lambda text: print(f"{_CLEAR}{text}", end="", file=stream, flush=True)
        return write, lambda: write("")
    if progress:
        return lambda text: print(text, file=stream, flush=True), nothing
    return _now_and_then(stream, every), nothing


def _now_and_then(stream: TextIO, every: float) -> Show:
    last = time.monotonic()

    def show(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= every:
            print(text, file=stream, flush=True)
            last = time.monotonic()

    return show


def in_kernel() -> bool:
    """Whether this runs in a cell of a notebook."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython and ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def _below_the_cell() -> tuple[Show, Callable[[], None]]:
    from IPython.display import display

    handles: list[Any] = []

    def show(text: str) -> None:
        data = {"text/plain": text}
        if handles:
            handles[0].update(data, raw=True)
        else:
            handles.append(display(data, raw=True, display_id=True))

    return show, lambda: show("") if handles else None
