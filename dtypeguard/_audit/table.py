"""A table of findings as Markdown."""

from collections.abc import Iterable, Sequence

from .._leaves.page import Cell


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """The lines of a table."""
    show = lambda text, code: " ".join(filter(None, (text, code and markdown_code(code))))
    lines = [head, *([show(*cell) for cell in row] for row in rows)]
    first, *others = (f"| {' | '.join(line)} |" for line in lines)
    return [first, "|---" * len(head) + "|", *others]


def markdown_code(text: str) -> str:
    """Text as code, even with backticks or bars in it."""
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"
