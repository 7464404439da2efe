"""A report of precision as one page: the source, with what each line loses and pays."""

import itertools
import linecache
import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, NamedTuple, TypeAlias

from .._leaves.rows import percent
from .._source.files import file_text
from .._source.origin import Origin, place_of
from . import text

# A `PrecisionReport`, of which this is a page.
Report: TypeAlias = Any
# A file of at most so many lines is shown as a whole.
_SHORT = 60
# Lines shown before and after a line that the report names.
_AROUND = 3

STYLE = """
h2 { font-size: 1.1rem; margin: 1.4rem 0 .4rem; overflow-wrap: anywhere; }
h1, p, li { overflow-wrap: anywhere; max-width: 60rem; }
ul { padding-left: 1.4rem; } li { margin: .3rem 0; }
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
"""


class Mark(NamedTuple):
    """What a report says of a line: in words, its share of the error, and of the work."""

    origin: Origin | None
    place: str
    text: str
    loses: float = 0.0
    pays: float = 0.0
    is_chosen: bool = False


def body(it: Report) -> str:
    """The body of a page: the text of the report around the source that it is about."""
    told = text.report(it)
    first = told[0].removeprefix("precision: ")
    parts = [f"<h1>precision: {escape(first)}</h1>"]
    advised = text.advice(it)
    items = "".join(f"<li>{escape(each)}</li>\n" for each in advised)
    parts += [f"<h2>What to change</h2>\n<ul>\n{items}</ul>"] if items else []
    sentences = [*text.details_of(it.differences, it.divergence), *text.notes(it)]
    parts += [f"<p>{escape(each)}</p>" for each in sentences]
    marks = [*_marks(it)]
    columns = [kind for kind in _MEANINGS if any(getattr(mark, kind) for mark in marks)]
    parts.append(_legend(columns))
    elsewhere = []
    for file, of_file in _by_file(marks).items():
        lines = [line.rstrip("\n").expandtabs(4) for line in linecache.getlines(file)]
        if file and max(of_file) <= len(lines):  # else this is not the text that ran
            parts.append(_source(file_text(file), lines, of_file, columns))
        else:
            elsewhere += [mark for each in of_file.values() for mark in each]
    if elsewhere:
        rows = [_row("", mark.place, [mark], columns) for mark in elsewhere]
        parts += ["<h2>On no line of a file</h2>", _table(rows, columns)]
    kind = ' class="healthy"' if it.is_spread else ""
    return f"<main{kind}>\n" + "\n".join(parts) + "\n</main>"


def _marks(it: Report) -> Iterator[Mark]:
    """What is said of lines: what they lose, what they make wide, how they decide."""
    for loss in it.losses:
        said = [f"rounds to {' and '.join(loss.dtypes)}", loss.constant or ""]
        said.append(f"{percent(loss.alone)} off if only this line rounds")
        if not math.isnan(loss.left):
            left = f"{percent(loss.left)} of the squared error left with it "
            said.append(left + it.words.widened)
        is_inner = loss.origin and loss.origin.called_from
        inner = f"{loss.origin} {loss.origin.code}" if is_inner else ""
        said = "" if it.is_spread else "; ".join(filter(None, said))
        told = ": ".join(filter(None, (loss.cast or inner, said)))
        is_chosen = loss in it.fix and not it.is_spread
        yield Mark(loss.origin, loss.place, told, loss.share, is_chosen=is_chosen)
    for cost in it.costs:
        origin = cost.origin or (cost.cause if isinstance(cost.cause, Origin) else None)
        told = f"{_label(cost.share)} of the matrix products run wide"
        told += f" because of {place_of(cost.cause)}" * (cost.cause != origin)
        yield Mark(origin, place_of(origin or cost.cause), told, pays=cost.share)
    for each in it.decisions:
        place = place_of(each.origin) if each.origin else "inside JAX"
        part = percent(each.flipped / each.count)
        yield Mark(
            each.origin,
            place,
            f"{part} of {each.count:,} decisions are others in {it.wide}",
        )


def _label(share: float) -> str:
    return f"{100 * share:.0f}%" if not 0 < share < 0.01 else "<1%"


_MEANINGS = {
    "loses": "its share of the squared error of the outputs",
    "pays": "the share of the matrix products that run wide because of it",
}


def _legend(columns: Sequence[str]) -> str:
    keys = (
        f'<span><span class="bar key {kind}" aria-hidden="true"><i></i></span>'
        f"what a line {kind}: {_MEANINGS[kind]}</span>"
        for kind in columns
    )
    return f'<p class="legend dim">{" ".join(keys)}</p>' if columns else ""


def _by_file(marks: Sequence[Mark]) -> dict[str, dict[int, list[Mark]]]:
    """The marks by file and line that the user can edit; those of no file under ""."""
    found: dict[str, dict[int, list[Mark]]] = {}
    for mark in marks:
        line = mark.origin.users if mark.origin else None
        file, number = (line.file, line.line) if line else ("", 0)
        found.setdefault(file, {}).setdefault(number, []).append(mark)
    return found


def _source(
    name: str, lines: Sequence[str], marks: dict[int, list[Mark]], columns: list[str]
) -> str:
    """A file, or what is around the lines with marks, as a table."""
    shown, rows, last = _shown(lines, marks), [], 0
    for number in [*shown, len(lines) + 1]:
        if (left_out := number - last - 1) > 0:
            told = "1 line" if left_out == 1 else f"{left_out} lines"
            span = 2 + len(columns)
            rows.append(f'<tr class="gap"><td colspan="{span}">{told}</td></tr>')
        if number <= len(lines):
            rows.append(
                _row(str(number), lines[number - 1], marks.get(number, []), columns)
            )
        last = number
    return f"<h2>{escape(name)}</h2>\n{_table(rows, columns)}"


def _table(rows: Sequence[str], columns: Sequence[str]) -> str:
    heads = [("number", "line"), *(("share", kind) for kind in columns), ("", "source")]
    cells = "".join(f'<th scope="col" class="{kind}">{head}</th>' for kind, head in heads)
    head = f'<table class="source">\n<thead><tr>{cells}</tr></thead>\n<tbody>\n'
    return head + "\n".join(rows) + "\n</tbody>\n</table>"


def _shown(lines: Sequence[str], marked: Iterable[int]) -> list[int]:
    """The numbers of the lines to show: no empty ones at the ends of a part of a file."""
    if len(lines) <= _SHORT:
        return [*range(1, len(lines) + 1)]
    near = {n for line in marked for n in range(line - _AROUND, line + _AROUND + 1)}
    full = [n for n, line in enumerate(lines, 1) if n in near and line.strip()]
    shown = {*full}
    for one, other in itertools.pairwise(full):
        # One line left out takes as much room as the row that says so.
        if other - one <= 2 or not "".join(lines[one : other - 1]).strip():
            shown |= {*range(one, other)}
    return sorted(shown)


def _row(number: str, code: str, marks: Sequence[Mark], columns: Sequence[str]) -> str:
    kinds = ["named"] * bool(marks) + ["chosen"] * any(mark.is_chosen for mark in marks)
    said = "".join(f'<p class="said">{escape(x.text)}</p>' for x in marks if x.text)
    return (
        f'<tr class="{" ".join(kinds)}"><th scope="row">{number}</th>'
        f"{''.join(_bar(kind, marks) for kind in columns)}"
        f"<td><code>{escape(code)}</code>{said}</td></tr>"
    )


def _bar(kind: str, marks: Sequence[Mark]) -> str:
    """A cell with what some marks lose or pay together; empty if that is nothing."""
    shares = [share for mark in marks if (share := getattr(mark, kind))]
    if not shares:
        return '<td class="share"></td>'
    # Two may pay for the same work; each loses its own share.
    share = sum(shares) if kind == "loses" else max(shares)
    width = 100 * min(max(share, 0.0), 1.0)
    return (
        f'<td class="share">{escape(_label(share))}'
        f'<span class="bar {kind}"><i style="width: {width:.1f}%"></i></span></td>'
    )
