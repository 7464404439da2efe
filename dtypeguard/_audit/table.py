"""A table of findings, as Markdown and HTML."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from .._program.origins import Origin

Cell = str | Origin | None


class Code(str):
    """A cell that is code."""

    __slots__ = ()


class Table(NamedTuple):
    """Findings in rows.

    Attributes:
        head: the names of the columns.
        rows: one cell for each column. An `Origin` is shown with its code.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def to_markdown(self) -> list[str]:
        """The lines of a table."""
        return [
            f"| {' | '.join(self.head)} |",
            "|---" * len(self.head) + "|",
            *(f"| {' | '.join(map(_markdown, row))} |" for row in self.rows),
        ]

    def to_html(self) -> str:
        """A `table` element."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.head)
        body = "".join(
            "<tr>" + "".join(f"<td>{_html(cell)}</td>" for cell in row) + "</tr>\n"
            for row in self.rows
        )
        return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


def _markdown(cell: Cell) -> str:
    if isinstance(cell, Origin):
        return f"{cell.place} {markdown_code(cell.users.code)}"
    return markdown_code(cell) if isinstance(cell, Code) else cell or ""


def _html(cell: Cell) -> str:
    if isinstance(cell, Origin):
        return f"{escape(cell.place)}<br><code>{escape(cell.users.code)}</code>"
    text = escape(cell or "")
    return f"<code>{text}</code>" if isinstance(cell, Code) else text


def markdown_code(text: str) -> str:
    """Text as code, even with backticks or bars in it."""
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"
