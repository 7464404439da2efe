"""Reports in the terminal: with rich where it is installed, plain where it is not.

Plain as well where the output goes into a pipe or a file, for the next program to read.
"""

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, TypeVar

from .._audit.report import AuditReport
from .._sweep.report import HEADER, Report, plain_table

_T = TypeVar("_T")


def progress(items: Iterable[_T], total: int) -> Iterator[_T]:
    """The items, with a bar on standard error that moves for each of them."""
    if _is_rich(sys.stderr):
        from rich.console import Console
        from rich.progress import track

        console = Console(stderr=True)
        yield from track(items, "Sweeping", total, console=console, transient=True)
        return
    for number, item in enumerate(items, start=1):
        yield item
        # In a file every tenth part gets a line, in a terminal the line is rewritten.
        if sys.stderr.isatty():
            end = "\r" if number < total else "\r\033[K"
            print(f"Sweeping {number}/{total}", end=end, file=sys.stderr, flush=True)
        elif number * 10 // total > (number - 1) * 10 // total:
            print(f"Swept {number}/{total}", file=sys.stderr, flush=True)


def show(report: Report) -> None:
    """Prints the table, what was left out, what failed although guarded, the totals."""
    if _is_rich(sys.stdout):
        _show_rich_table(report)
    else:
        print(plain_table(report.rows()))
    _show_list("Not swept:", [f"{left.id}: {left.reason}" for left in report.unbuilt])
    _show_list("Skipped checks:", report.skips())
    _show_list("Failures although guarded:", report.guarded_failures())
    print(f"\n{report.closing_line()}")


def show_audit(report: AuditReport) -> None:
    """Prints the report of one optimizer."""
    if not _is_rich(sys.stdout):
        print(report)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    style = "bold green" if report.ok else "bold red"
    console.print(Text(f"audit: {report.headline}", style=style))
    if report.error is not None:
        console.print(Text("\n".join(f"  {line}" for line in report.error.lines())))
    table = Table(box=None, show_header=False, padding=(0, 2))
    for column_style in ("cyan", "", "yellow", "dim"):
        table.add_column(style=column_style, overflow="fold")
    for row in report.rows():
        table.add_row(*map(Text, row))
    if report.drifts:
        console.print(table)
    for text in report.paragraphs:
        console.print(Text(text))


def _show_rich_table(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for column in HEADER:
        numeric = column in HEADER[1:4]
        table.add_column(column, justify="right" if numeric else "left")
    for row in report.rows():
        style = "red" if row.guarded != "0" else "yellow" if row.bare != "0" else ""
        table.add_row(*(Text(cell) for cell in row), style=style)
    Console().print(table)


def _show_list(title: str, lines: list[str]) -> None:
    if lines:
        print(f"\n{title}", *lines, sep="\n  ")


def _is_rich(stream: TextIO | Any) -> bool:
    return stream.isatty() and importlib.util.find_spec("rich") is not None
