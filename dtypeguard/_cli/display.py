"""Reports in the terminal: in colour where rich is installed.

Without colour if the output goes into a pipe or a file, for the next program to read.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

from .._audit.report import AuditReport
from .._precision.report import PrecisionReport
from .._sweep.report import Report

_T = TypeVar("_T")


def progress(items: Iterable[_T], total: int) -> Iterator[_T]:
    """Yields the items and shows on standard error how many are done."""
    if _is_rich(sys.stderr):
        from rich.console import Console
        from rich.progress import track

        console = Console(stderr=True)
        yield from track(items, "Sweeping", total, console=console, transient=True)
        return
    for number, item in enumerate(items, start=1):
        yield item
        if number * 10 // total > (number - 1) * 10 // total:  # every tenth part
            print(f"Swept {number:,}/{total:,}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """A function that shows in a terminal, on standard error, what is being done."""
    stream, clear = sys.stderr, "\r\033[K"
    if not stream.isatty():
        yield lambda text: None
        return
    try:
        yield lambda text: print(f"{clear}{text}", end="", file=stream, flush=True)
    finally:
        print(clear, end="", file=stream, flush=True)


def show(report: Report) -> None:
    """Prints the table, what was left out, what failed although guarded, the totals."""
    write = _writer()
    header, *lines = report.table()
    write(header, "bold")
    for row, line in zip(report.rows(), lines):
        write(line, "red" if row.guarded else "yellow" if row.bare else "")
    for title, listed in (
        ("Not swept:", [f"{left.id}: {left.reason}" for left in report.unbuilt]),
        ("Skipped checks:", report.skips()),
        ("Failures although guarded:", report.guarded_failures()),
    ):
        if listed:
            write("\n  ".join([f"\n{title}", *listed]))
    write(f"\n{report.closing_line()}")


def show_report(report: AuditReport | PrecisionReport, is_ok: bool) -> None:
    """Prints the report of one optimizer, step or function."""
    write = _writer()
    headline, *lines = str(report).splitlines()
    write(headline, "bold green" if is_ok else "bold red")
    for line in lines:
        write(line)


def _writer() -> Callable[..., None]:
    """A function that prints a text, in a style of rich where it can."""
    if not _is_rich(sys.stdout):
        return lambda text, style="": print(text)
    from rich.console import Console
    from rich.text import Text

    console = Console()
    return lambda text, style="": console.print(Text(text, style), soft_wrap=True)


def _is_rich(stream: TextIO) -> bool:
    return stream.isatty() and importlib.util.find_spec("rich") is not None
