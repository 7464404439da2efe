"""Reports in the terminal: in colour where rich is installed.

Without colour if the output goes into a pipe or a file, for the next program to read.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from .._audit.report import AuditReport
from .._leaves.colors import is_colored
from .._leaves.progress import counted, status
from .._leaves.rows import columns
from .._precision.report import PrecisionReport
from .._sweep.report import LEGEND, Report
from .output import writer

_WIDTH = 100
_T = TypeVar("_T")


def progress(items: Iterable[_T], total: int) -> Iterator[_T]:
    """Yields the items and shows on a terminal, on standard error, how many are done."""
    if is_colored(sys.stderr):
        from rich.console import Console
        from rich.progress import track

        console = Console(stderr=True)
        yield from track(items, "Sweeping", total, console=console, transient=True)
        return
    with status() as show_status:
        yield from counted(items, total, show_status, "Swept")


def show(report: Report) -> None:
    """Prints the table and its columns, what was left out, what failed, the totals."""
    write = writer()
    header, *lines = report.table()
    write(header, "bold")
    for row, line in zip(report.rows(), lines):
        style = "red" if row.guarded else "yellow" if row.bare else ""
        if len(line) > _WIDTH:
            line = f"{line[: _WIDTH - 5].rpartition(', ')[0]}, ..."
        write(line, style)
    for title, listed in (
        ("Columns:", columns(LEGEND)),
        ("Not swept:", [f"{left.id}: {left.reason}" for left in report.unbuilt]),
        ("Skipped checks:", report.skips()),
        ("Failures although guarded:", report.guarded_failures()),
    ):
        if listed:
            write("\n  ".join([f"\n{title}", *listed]))
    write(f"\n{report.closing_line()}")
    write(report.meaning())


def show_report(report: AuditReport | PrecisionReport, is_ok: bool, style: str) -> None:
    """Prints the report of one optimizer, step or function.

    Args:
        report: the report.
        is_ok: whether the exit status is 0.
        style: of its headline then.
    """
    write = writer()
    headline, *lines = str(report).splitlines()
    write(headline, f"bold {style}" if is_ok else "bold red")
    for line in lines:
        write(line)
