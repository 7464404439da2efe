"""What HTML reports share: pages and cells, light and dark, nothing from a network.

All rules hold within the class `dtypeguard` alone, and are stronger there than those of a
notebook.
"""

import re
from html import escape
from typing import Any

# The name of an element counts more than any class of a notebook's style.
_SCOPE = ":is(.dtypeguard, #dtypeguard)"
_LIGHT = """
  --page: #fff; --ink: #1b1f24; --dim: #59636e; --line: #d1d9e0; --soft: #f3f5f7;
  --bad: #b3261e; --on-bad: #fff; --ok: #e3eef9; --ok-ink: #0b4a86; --skip: #eceff2;
  --focus: #0969da; --pays: #8250df;"""
_DARK = """
  --page: #0f1318; --ink: #e6eaef; --dim: #9aa5b1; --line: #343c46; --soft: #1a2027;
  --bad: #f2a09a; --on-bad: #2b0705; --ok: #16293c; --ok-ink: #a9d0f7; --skip: #20262d;
  --focus: #6cb2ff; --pays: #c297ff;"""
# What JupyterLab, VS Code and sites of notebooks write on their pages.
_IS_LIGHT = ":is([data-jp-theme-light=true], .vscode-light, [data-theme=light])"
_IS_DARK = ":is([data-jp-theme-light=false], .vscode-dark, .vscode-high-contrast, "
_IS_DARK += "[data-theme=dark])"
_COLORS = f"""
.dtypeguard {{ {_LIGHT} color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }}
@media (prefers-color-scheme: dark) {{
  .dtypeguard:not({_IS_LIGHT} *) {{ {_DARK} }} }}
{_IS_DARK} .dtypeguard {{ {_DARK} }}
"""
_RULES = """
* { box-sizing: border-box; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; line-height: 1.3; }
p { margin: .4rem 0; } .lines { white-space: pre-wrap; } .dim { color: var(--dim); }
code, .mono { font: 13px/1.5 ui-monospace, monospace; color: inherit; background: none; }
table { border-collapse: collapse; margin: 0; font-size: inherit; table-layout: auto; }
tr { background: none; }
th, td { text-align: left; padding: .25rem .6rem; border: 0; white-space: normal;
  border-bottom: 1px solid var(--line); vertical-align: top; line-height: inherit; }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 1px; }
"""
# A notebook that shows the page drops its `html` and its `body`, and these rules with them.
_PAGE = """
html.dtypeguard-page { color-scheme: light dark; }
html.dtypeguard-page > body { margin: 0; }
html.dtypeguard-page > body > .dtypeguard { margin: 0 auto; padding: 1.5rem;
  max-width: 90rem; min-height: 100vh; box-sizing: border-box; background: var(--page); }
@media (max-width: 40rem) {
  html.dtypeguard-page > body > .dtypeguard { padding: .8rem; } }
"""
_CELL = (
    "h1 { font-size: 1.1rem; } h2 { font-size: 1rem; } p, ul, table { font-size: 14px; }"
)


def document(title: str, body: str, style: str = "", script: str = "") -> str:
    """A complete page around a body of HTML."""
    script = f"<script>{script}</script>\n" if script else ""
    style = f"{_COLORS}{_PAGE}{_scoped(_RULES + style)}"
    return (
        '<!doctype html>\n<html lang="en" class="dtypeguard-page">\n<head>\n'
        '<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f'<body>\n<div class="dtypeguard">\n{body}\n</div>\n{script}</body>\n</html>\n'
    )


def cell_output(body: str, style: str = "") -> str:
    """A body of HTML as the output of a cell, which leaves the rest of a notebook alone."""
    style = f"{_COLORS}{_scoped(_RULES + style + _CELL)}"
    return f'<div class="dtypeguard">\n<style>{style}</style>\n{body}\n</div>\n'


class Displayed:
    """How a report shows itself as the last expression of a cell, or in a prompt."""

    headline: Any

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return cell_output(*self._html())

    def _html(self) -> tuple[str, ...]:
        """The body of its page, and its style."""
        raise NotImplementedError


def _scoped(rules: str) -> str:
    """Rules that hold within the scope alone."""

    def within(match: re.Match[str]) -> str:
        if match[1].lstrip().startswith("@"):
            return match[0]
        parts = [part.strip() for part in match[1].split(",")]
        return "\n" + ", ".join(f"{_SCOPE} {part}" for part in parts) + " {"

    return re.sub(r"(@?[^{}@]+)\{", within, rules)
