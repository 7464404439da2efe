"""A table of findings, as Markdown and HTML."""

from collections.abc import Iterable, Sequence
from html import escape

Cell = tuple[str, str]  # a text and the code below it; either may be empty


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """The lines of a table."""
    show = lambda text, code: " ".join(filter(None, (text, code and markdown_code(code))))
    lines = [head, *([show(*cell) for cell in row] for row in rows)]
    first, *others = (f"| {' | '.join(line)} |" for line in lines)
    return [first, "|---" * len(head) + "|", *others]


def html_table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A `table` element."""

    def show(text, code):
        code = code and f"<code>{escape(code)}</code>"
        return f"<td>{'<br>'.join(filter(None, (escape(text), code)))}</td>"

    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = ("<tr>" + "".join(show(*cell) for cell in row) + "</tr>" for row in rows)
    body = "\n".join(body)
    return f"<table>\n<thead><tr>{names}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def markdown_code(text: str) -> str:
    """Text as code, even with backticks or bars in it."""
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"
