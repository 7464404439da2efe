"""A report of precision as one page: the source, with what each line loses and pays."""

import itertools
import linecache
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from .._source.files import file_text
from .._source.origin import Origin

# A file of at most so many lines is shown as a whole.
_SHORT = 60
# Lines shown before and after a line that the report names.
_AROUND = 3

STYLE = """
h2 { font-size: 1.1rem; margin: 1.4rem 0 .4rem; overflow-wrap: anywhere; }
h1, p, li { overflow-wrap: anywhere; max-width: 60rem; }
ul { padding-left: 1.4rem; } li { margin: .3rem 0; }
summary { cursor: pointer; margin-top: 1rem; }
.bar { display: block; height: .5rem; border-radius: 2px; background: var(--soft);
  border: 1px solid var(--line); }
.bar i { display: block; height: 100%; min-width: 1px; }
.loses i { background: var(--bad); } .healthy .loses i { background: var(--dim); }
.pays i { background: repeating-linear-gradient(135deg, #0000 0 2px, #0003 2px 4px)
  var(--pays); }
.key { display: inline-block; width: 2rem; vertical-align: middle; margin-right: .3rem; }
.legend > span { display: inline-block; margin-right: 1.5rem; }
.source { width: 100%; table-layout: fixed; border: 1px solid var(--line); }
.source th, .source td { border: 0; padding: 0 .5rem; max-width: none;
  font: 13px/1.6 ui-monospace, monospace; }
.source thead th { font: 600 13px/1.8 system-ui, sans-serif; color: var(--dim);
  border-bottom: 1px solid var(--line); }
.source .number { width: 4rem; } .source .share { width: 6.5rem; }
.source tbody th { font-weight: 400; color: var(--dim); text-align: right; }
.source td.share { font-size: 12px; white-space: nowrap; padding-top: .15rem; }
.source td code { white-space: pre-wrap; overflow-wrap: anywhere; }
.source tr.named { background: var(--soft); }
.source tr.named:target, .source tr.chosen { background: var(--ok); }
.source tr.chosen th { box-shadow: inset 4px 0 0 var(--bad); color: var(--ink); }
.source tr.gap td { color: var(--dim); background: var(--soft); text-align: center; }
.source .said { font: 13px/1.5 system-ui, sans-serif; color: var(--dim); margin: 0 0 .3rem;
  padding-left: 1rem; overflow-wrap: anywhere; } .source .said code { font-size: 12px; }
.figures td + td { text-align: right; font-variant-numeric: tabular-nums; }
.figures td { overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  .source th, .source td { padding: 0 .25rem; font-size: 12px; }
  .source .number { width: 2.4rem; } .source .share { width: 3.1rem; }
  .source .said { padding-left: 0; } }
"""


class Mark(NamedTuple):
    """What a report says of a line.

    Attributes:
        origin: the line; None if it is none of a file.
        place: its name.
        text: what is measured of it; may be empty.
        inner: the line of a package that it calls, and its code, or the leaves that
            dtypeguard casts; empty for the line itself.
        loses: its share of the error.
        pays: its share of the work.
        is_chosen: whether it is one of those to change.
    """

    origin: Origin | None
    place: str
    text: str
    inner: str = ""
    loses: float = 0.0
    pays: float = 0.0
    is_chosen: bool = False


def body(
    headline: str,
    marks: Sequence[Mark],
    advice: Mapping[str, Sequence[str]],
    notes: Sequence[str],
    figures: Mapping[str, str],
    is_healthy: bool,
) -> str:
    """The body of a page.

    Args:
        headline: the result in one sentence.
        marks: what is said of lines, the most important first.
        advice: what to write, lists by their headings.
        notes: sentences below it.
        figures: tables behind the source that open on demand, by their titles.
        is_healthy: whether no line stands out; then no color says that one is wrong.
    """
    parts = [f"<h1>precision: {escape(headline)}</h1>"]
    for heading, sentences in advice.items():
        items = "".join(f"<li>{escape(each)}</li>\n" for each in sentences)
        parts += [f"<h2>{heading}</h2>\n<ul>\n{items}</ul>"] if items else []
    parts += [f"<p>{escape(note)}</p>" for note in notes]
    if marks:
        parts.append(_legend(marks))
    columns = _columns(marks)
    elsewhere = []
    for file, of_file in _by_file(marks).items():
        lines = [line.rstrip("\n").expandtabs(4) for line in linecache.getlines(file)]
        if file and max(of_file) <= len(lines):  # else this is not the text that ran
            parts.append(_source(file_text(file), lines, of_file, columns))
        else:
            elsewhere += [mark for each in of_file.values() for mark in each]
    if elsewhere:
        parts.append(_without_source(elsewhere, columns))
    for title, table in figures.items():
        summary = f"<summary>{escape(title)}</summary>"
        parts.append(f'<details class="figures">{summary}\n{table}\n</details>')
    kind = ' class="healthy"' if is_healthy else ""
    return f"<main{kind}>\n" + "\n".join(parts) + "\n</main>"


def bar_label(share: float) -> str:
    """A share as a bar is labelled."""
    return f"{100 * share:.0f}%" if not 0 < share < 0.01 else "<1%"


_MEANINGS = {
    "loses": "its share of the squared error of the outputs",
    "pays": "the share of the matrix products that run wide because of it",
}


def _columns(marks: Sequence[Mark]) -> list[str]:
    """The kinds of bars that a page has."""
    return [kind for kind in _MEANINGS if any(getattr(mark, kind) for mark in marks)]


def _legend(marks: Sequence[Mark]) -> str:
    keys = (
        f'<span><span class="bar key {kind}" aria-hidden="true"><i></i></span>'
        f"what a line {kind}: {_MEANINGS[kind]}</span>"
        for kind in _columns(marks)
    )
    return f'<p class="legend dim">{" ".join(keys)}</p>'


def _by_file(marks: Sequence[Mark]) -> dict[str, dict[int, list[Mark]]]:
    """The marks by file and line that the user can edit; those of no file under ""."""
    found: dict[str, dict[int, list[Mark]]] = {}
    for mark in marks:
        line = mark.origin.users if mark.origin else None
        file, number = (line.file, line.line) if line else ("", 0)
        found.setdefault(file, {}).setdefault(number, []).append(mark)
    return found


def _source(
    name: str, lines: Sequence[str], marks: Mapping[int, Sequence[Mark]], columns: list[str]
) -> str:
    """A file, or what is around the lines with marks, as a table."""
    shown = _shown(lines, marks)
    texts = [lines[number - 1] for number in shown]
    margin = min((len(x) - len(x.lstrip()) for x in texts if x.strip()), default=0)
    rows, last = [], 0
    for number, text in zip(shown, texts):
        if number > last + 1:
            rows.append(_gap(number - last - 1, columns))
        rows.append(_row(str(number), text[margin:], marks.get(number, ()), columns))
        last = number
    if last < len(lines):
        rows.append(_gap(len(lines) - last, columns))
    return f"<h2>{escape(name)}</h2>\n{_table('line', 'source', rows, columns)}"


def _without_source(marks: Sequence[Mark], columns: list[str]) -> str:
    rows = [_row("", mark.place, [mark], columns) for mark in marks]
    return f"<h2>On no line of a file</h2>\n{_table('', 'where', rows, columns)}"


def _table(first: str, last: str, rows: Sequence[str], columns: list[str]) -> str:
    heads = [("number", first), *(("share", kind) for kind in columns), ("", last)]
    cells = "".join(f'<th scope="col" class="{kind}">{head}</th>' for kind, head in heads)
    return (
        f'<table class="source">\n<thead><tr>{cells}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody>\n</table>"
    )


def _shown(lines: Sequence[str], marked: Iterable[int]) -> list[int]:
    """The numbers of the lines to show: no empty ones at the ends of a part of a file."""
    if len(lines) <= _SHORT:
        return [*range(1, len(lines) + 1)]
    near = {n for line in marked for n in range(line - _AROUND, line + _AROUND + 1)}
    full = [n for n, line in enumerate(lines, 1) if n in near and line.strip()]
    shown = {*full}
    for one, other in itertools.pairwise(full):
        between = "".join(lines[one : other - 1])
        # One line left out takes as much room as the row that says so.
        if other - one <= 2 or not between.strip():
            shown |= {*range(one, other)}
    return sorted(shown)


def _row(number: str, code: str, marks: Sequence[Mark], columns: list[str]) -> str:
    kinds = ["named"] * bool(marks) + ["chosen"] * any(mark.is_chosen for mark in marks)
    bars = "".join(_bar(kind, marks) for kind in columns)
    said = "".join(map(_said, marks))
    return (
        f'<tr class="{" ".join(kinds)}"><th scope="row">{number}</th>{bars}'
        f"<td><code>{escape(code)}</code>{said}</td></tr>"
    )


def _said(mark: Mark) -> str:
    inner = f"<code>{escape(mark.inner)}</code>" if mark.inner else ""
    said = "<br>".join(part for part in (inner, escape(mark.text)) if part)
    return f'<p class="said">{said}</p>' if said else ""


def _bar(kind: str, marks: Sequence[Mark]) -> str:
    """A cell with what some marks lose or pay together; empty if that is nothing."""
    shares = [share for mark in marks if (share := getattr(mark, kind))]
    if not shares:
        return '<td class="share"></td>'
    # Two may pay for the same work; each loses its own share.
    share = sum(shares) if kind == "loses" else max(shares)
    width = 100 * min(max(share, 0.0), 1.0)
    return (
        f'<td class="share">{escape(bar_label(share))}'
        f'<span class="bar {kind}"><i style="width: {width:.1f}%"></i></span></td>'
    )


def _gap(count: int, columns: list[str]) -> str:
    said = "1 line" if count == 1 else f"{count} lines"
    return f'<tr class="gap"><td colspan="{2 + len(columns)}">{said}</td></tr>'
