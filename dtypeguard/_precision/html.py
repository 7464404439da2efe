"""A report of precision as one page: the source, with what each line loses and pays."""

import linecache
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, TypeAlias

from .._leaves.rows import percent
from .._source.files import file_text
from .._source.origin import Origin, place_of
from . import text

# A `PrecisionReport`, of which this is a page.
Report: TypeAlias = Any
# A file of at most so many lines is shown as a whole; of others, so many around a line.
_SHORT, _AROUND = 60, 3
# The columns of bars.
_MEANINGS = {
    "loses": "its share of the squared error of the outputs",
    "pays": "the share of the matrix products that run wide because of it",
}

# All rules hold within the class alone, wherever a page is shown.
_STYLE = """
.dtypeguard { --ink: #1b1f24; --dim: #59636e; --soft: #f3f5f7; --page: #fff;
  --bad: #b3261e; --ok: #e3eef9; --pays: #8250df; color: var(--ink);
  background: var(--page); font: 15px/1.5 system-ui, sans-serif; padding: 1.5rem;
  & h1 { font-size: 1.4rem; } & h2 { font-size: 1.1rem; margin: 1.4rem 0 .4rem; }
  & .lines { white-space: pre-wrap; } & .dim, & .said, & th { color: var(--dim); }
  & table { border-collapse: collapse; width: 100%; table-layout: fixed; }
  & th, & td, & .mono { font: 13px/1.6 ui-monospace, monospace; text-align: left; }
  & th, & td { padding: 0 .5rem; vertical-align: top; }
  & .number { width: 4rem; } & .share { width: 6.5rem; }
  & code { font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; }
  & .named, & .gap { background: var(--soft); } & .chosen { background: var(--ok); }
  & .bar i { display: block; height: .5rem; min-width: 1px; }
  & .loses i { background: var(--bad); } & .healthy .loses i { background: var(--dim); }
  & .pays i { background: var(--pays); } & .said { margin: 0; padding-left: 1rem; } }
@media (prefers-color-scheme: dark) { .dtypeguard { --page: #0f1318; --ink: #e6eaef;
  --dim: #9aa5b1; --soft: #1a2027; --bad: #f2a09a; --ok: #16293c; --pays: #c297ff; } }
"""


def document(title: str, body: str) -> str:
    """A complete page around a body of HTML, which asks for nothing from a network."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">\n"
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f'<body>\n<div class="dtypeguard">\n{body}\n</div>\n</body>\n</html>\n'
    )


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
    first = text.report(it)[0]
    parts = [f"<h1>{escape(first)}</h1>"]
    items = "".join(f"<li>{escape(each)}</li>\n" for each in text.advice(it))
    parts += [f"<h2>What to change</h2>\n<ul>\n{items}</ul>"] if items else []
    sentences = [*text.details_of(it.differences, it.divergence), *text.notes(it)]
    parts += [f"<p>{escape(each)}</p>" for each in sentences]
    marks = [*_marks(it)]
    kinds = [kind for kind in _MEANINGS if any(getattr(mark, kind) for mark in marks)]
    parts += [f'<p class="dim">What a line {x}: {_MEANINGS[x]}.</p>' for x in kinds]
    by_file, elsewhere = dict[str, dict[int, list[Mark]]](), list[str]()
    for mark in marks:
        line = mark.origin.users if mark.origin else None
        file, number = (line.file, line.line) if line else ("", 0)
        by_file.setdefault(file, {}).setdefault(number, []).append(mark)
    for file, of_file in by_file.items():
        lines = [line.rstrip("\n").expandtabs(4) for line in linecache.getlines(file)]
        if file and max(of_file) <= len(lines):  # else this is not the text that ran
            rows = _rows(lines, of_file, kinds)
            parts.append(f"<h2>{escape(file_text(file))}</h2>\n{_table(rows, kinds)}")
        else:
            marked = (mark for each in of_file.values() for mark in each)
            elsewhere += [_row("", mark.place, [mark], kinds) for mark in marked]
    if elsewhere:
        parts += ["<h2>On no line of a file</h2>", _table(elsewhere, kinds)]
    healthy = ' class="healthy"' if it.is_spread else ""
    return f"<main{healthy}>\n" + "\n".join(parts) + "\n</main>"


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
        told = f"{percent(cost.share)} of the matrix products run wide"
        told += f" because of {place_of(cost.cause)}" * (cost.cause != origin)
        yield Mark(origin, place_of(origin or cost.cause), told, pays=cost.share)
    for each in it.decisions:
        place = place_of(each.origin) if each.origin else "inside JAX"
        told = f"{percent(each.flipped / each.count)} of {each.count:,} decisions"
        yield Mark(each.origin, place, f"{told} are others in {it.wide}")


def _rows(
    lines: Sequence[str], marks: Mapping[int, list[Mark]], kinds: Sequence[str]
) -> list[str]:
    """A file, or what is around the lines with marks, with the number of those left out."""
    near = {n for line in marks for n in range(line - _AROUND, line + _AROUND + 1)}
    rows, last = [], 0
    for number, code in enumerate([*lines, ""], 1):
        if number <= len(lines) and len(lines) > _SHORT and not (number in near and code):
            continue
        if left_out := number - last - 1:
            told, span = f"{left_out} line{'s' * (left_out > 1)}", 2 + len(kinds)
            rows.append(f'<tr class="gap"><td colspan="{span}">{told}</td></tr>')
        rows.append(_row(str(number), code, marks.get(number, []), kinds))
        last = number
    return rows[:-1]


def _table(rows: Sequence[str], kinds: Sequence[str]) -> str:
    heads = [("number", "line"), *(("share", kind) for kind in kinds), ("", "source")]
    cells = "".join(f'<th scope="col" class="{kind}">{head}</th>' for kind, head in heads)
    head = f"<table>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n"
    return head + "\n".join(rows) + "\n</tbody>\n</table>"


def _row(number: str, code: str, marks: Sequence[Mark], kinds: Sequence[str]) -> str:
    named = ["named"] * bool(marks) + ["chosen"] * any(mark.is_chosen for mark in marks)
    said = "".join(f'<p class="said">{escape(x.text)}</p>' for x in marks if x.text)
    return (
        f'<tr class="{" ".join(named)}"><th scope="row">{number}</th>'
        f"{''.join(_bar(kind, marks) for kind in kinds)}"
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
        f'<td class="share">{percent(share)}'
        f'<span class="bar {kind}"><i style="width: {width:.1f}%"></i></span></td>'
    )
