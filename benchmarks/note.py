"""Draws docs/note.svg, the note of docs/explain.md: `python benchmarks/note.py`.

`tests/whole/test_docs.py` checks that `dtypeguard run` prints this note.
"""

import html
import pathlib
import re
import textwrap

from dtypeguard._explain import colors

DOCS = pathlib.Path(__file__).parents[1] / "docs"
COLUMNS, ADVANCE, LINE, MARGIN = 60, 8.43, 21, 18
# The colors of a dark terminal, for those of `dtypeguard run`.
COLORS = {
    "cyan": 'fill="#76e3ea"',
    "yellow": 'fill="#e3b341"',
    "bold red": 'fill="#ff7b72" font-weight="bold"',
}


def lines() -> list[str]:
    """The command, the first line of the error, and the note, as wide as the picture."""
    text = (DOCS / "explain.md").read_text()
    command = r"dtypeguard run train\.py\n```\n\n(?:<!-- .* -->\n)?```text\n"
    shown = re.search(command + r"(.*?)```", text, re.DOTALL)
    assert shown is not None
    _, error, *rest = shown[1].splitlines()
    note = rest[next(n for n, line in enumerate(rest) if line.startswith("dtypeguard:")) :]
    wrapped = (
        textwrap.wrap(line, COLUMNS, subsequent_indent="    ", break_on_hyphens=False)
        for line in [error, "...", *note]
    )
    return ["$ dtypeguard run train.py", *(line for lines in wrapped for line in lines)]


def marked(line: str) -> str:
    """A line of the picture with what stands out in colour."""
    text = html.escape(line, quote=False).replace(" ", "\N{NO-BREAK SPACE}")
    marks = (
        (colors._SOURCE_LINES, "cyan"),
        (colors._TYPES, "yellow"),
        (colors._NAME, "bold red"),
    )
    for pattern, mark in marks:
        style = COLORS[mark]
        text = pattern.sub(lambda m, s=style: f"<tspan {s}>{m[0]}</tspan>", text)
    return text


def main() -> None:
    """Writes the picture."""
    drawn = lines()
    width, height = COLUMNS * ADVANCE + 2 * MARGIN, len(drawn) * LINE + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        'font-family="ui-monospace, DejaVu Sans Mono, monospace" font-size="14" '
        'fill="#e6edf3">',
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0d1117"/>',
    ]
    for number, line in enumerate(drawn, 1):
        y, long = MARGIN + number * LINE - 6, len(line) * ADVANCE
        out.append(
            f'<text x="{MARGIN}" y="{y}" textLength="{long:.1f}" '
            f'lengthAdjust="spacingAndGlyphs">{marked(line)}</text>'
        )
    (DOCS / "note.svg").write_text("\n".join([*out, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
