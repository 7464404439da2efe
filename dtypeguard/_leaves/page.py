"""What HTML pages share: one file each, light and dark, nothing from a network."""

from collections.abc import Iterable, Sequence
from html import escape

Cell = tuple[str, str]  # a text and the code below it; either may be empty

_STYLE = """
:root { color-scheme: light dark;
  --page: #fff; --ink: #1b1f24; --dim: #59636e; --line: #d1d9e0; --soft: #f3f5f7;
  --bad: #b3261e; --on-bad: #fff; --ok: #e3eef9; --ok-ink: #0b4a86; --skip: #eceff2;
  --focus: #0969da; }
@media (prefers-color-scheme: dark) { :root {
  --page: #0f1318; --ink: #e6eaef; --dim: #9aa5b1; --line: #343c46; --soft: #1a2027;
  --bad: #f2a09a; --on-bad: #2b0705; --ok: #16293c; --ok-ink: #a9d0f7; --skip: #20262d;
  --focus: #6cb2ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 90rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; }
p { margin: .4rem 0; } .lines { white-space: pre-wrap; } .dim { color: var(--dim); }
code, .mono { font: 13px/1.5 ui-monospace, monospace; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 1px; }
"""


def document(title: str, body: str, style: str = "", script: str = "") -> str:
    """A complete page around a body of HTML."""
    script = f"<script>{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        f"<body>\n{body}\n{script}</body>\n</html>\n"
    )


def html_table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A `table` element."""

    def show(text, code):
        code = code and f"<code>{escape(code)}</code>"
        return f"<td>{'<br>'.join(filter(None, (escape(text), code)))}</td>"

    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = ("<tr>" + "".join(show(*cell) for cell in row) + "</tr>" for row in rows)
    body = "\n".join(body)
    return f"<table>\n<thead><tr>{names}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
