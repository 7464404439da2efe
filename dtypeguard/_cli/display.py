"""Reports in the terminal, in colour.

Without colour if the output goes into a pipe or a file, for the next program to read, or if
the environment has `NO_COLOR` (https://no-color.org).
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from .._audit.report import AuditReport
from .._precision.report import PrecisionReport
from .._sweep.report import Report

_T = TypeVar("_T")
_STYLES = {"bold": 1, "red": 31, "green": 32, "yellow": 33}


def progress(items: Iterable[_T], total: int) -> Iterator[_T]:
    """Yields the items and shows on standard error how many are done."""
    with status() as show:
        for number, item in enumerate(items, start=1):
            yield item
            if sys.stderr.isatty():
                show(f"Swept {number}/{total}")
            elif number * 10 // total > (number - 1) * 10 // total:  # every tenth part
                print(f"Swept {number}/{total}", file=sys.stderr, flush=True)


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
    header, *lines = report.table()
    _print(header, "bold")
    for row, line in zip(report.rows(), lines):
        _print(line, *["red"] if row.guarded else ["yellow"] if row.bare else [])
    for title, listed in (
        ("Not swept:", [f"{left.id}: {left.reason}" for left in report.unbuilt]),
        ("Skipped checks:", report.skips()),
        ("Failures although guarded:", report.guarded_failures()),
    ):
        if listed:
            print("\n  ".join([f"\n{title}", *listed]))
    print(f"\n{report.closing_line()}")


def show_report(report: AuditReport | PrecisionReport, is_ok: bool) -> None:
    """Prints the report of one optimizer, step or function."""
    headline, *lines = str(report).splitlines()
    _print(headline, "bold", "green" if is_ok else "red")
    for line in lines:
        print(line)


def _print(text: str, *styles: str) -> None:
    """Prints a text, in a terminal in these styles."""
    if styles and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        codes = ";".join(str(_STYLES[style]) for style in styles)
        text = f"\033[{codes}m{text}\033[0m"
    print(text)
