"""The sweep as a heat map: optimizers by configurations, bare beside guarded.

One page that opens offline. The symbol and the pattern of a cell, not only its hue, show
whether checks failed. Selected by mouse or keyboard, a cell says which, why and where.
"""

from html import escape

from .._audit.page import document
from .report import Report
from .sweep import CONFIGURATIONS, Outcome, where

_STYLE = """
.map { overflow: auto; max-height: max(20rem, calc(100vh - 21rem)); margin: 1rem 0;
  border: 1px solid var(--line); }
.map table { border-collapse: separate; border-spacing: 0; }
.map th, .map td { padding: 0; border: 0; }
.map thead th { position: sticky; top: 0; z-index: 2; background: var(--page);
  font-size: 12px; font-weight: 600; text-align: center; padding: .2rem .15rem;
  letter-spacing: -.03em; }
.map thead tr + tr th { top: 1.5rem; } .map thead tr + tr + tr th { top: 3rem; }
.map thead tr + tr + tr th { font-weight: 400; color: var(--dim);
  border-bottom: 1px solid var(--line); }
.map tbody th { position: sticky; left: 0; z-index: 1; background: var(--page);
  font: 13px/1.5 ui-monospace, monospace; white-space: nowrap; padding: 0 .6rem 0 .4rem;
  max-width: 21rem; overflow: hidden; text-overflow: ellipsis; }
.map thead th:first-child { left: 0; z-index: 3; text-align: left; padding-left: .4rem; }
.map .first { border-left: 2px solid var(--line); }
.map button { width: 100%; }
button { display: block; min-width: 1.45rem; height: 1.5rem; border: 1px solid var(--page);
  padding: 0; font: 600 13px/1 ui-monospace, monospace; cursor: pointer; color: inherit;
  background: none; }
button.ok { background: var(--ok); color: var(--ok-ink); }
button.rescued { background: var(--ok); color: var(--ok-ink);
  border-bottom: 3px double var(--ok-ink); }
button.failed { color: var(--on-bad); background: repeating-linear-gradient(135deg,
  transparent 0 4px, #0002 4px 6px) var(--bad); }
button.key { display: inline-block; cursor: default; vertical-align: middle; }
button[aria-pressed=true] { outline: 3px solid var(--focus); outline-offset: -1px; }
#details { border-left: 4px solid var(--line); background: var(--soft); padding: .6rem 1rem;
  height: 12rem; overflow: auto; white-space: pre-wrap;
  font: 13px/1.5 ui-monospace, monospace; }
"""

_SCRIPT = """
const body = document.querySelector('.map tbody');
const at = (row, column) => body.rows[row]?.cells[column]?.querySelector('button');
let chosen = at(0, 1);
body.querySelectorAll('button').forEach(button => { button.tabIndex = -1; });
if (chosen) chosen.tabIndex = 0;
body.addEventListener('focusin', ({ target }) => {
  chosen.tabIndex = -1;
  chosen.setAttribute('aria-pressed', 'false');
  chosen = target;
  chosen.tabIndex = 0;
  chosen.setAttribute('aria-pressed', 'true');
  document.getElementById('details').textContent = chosen.getAttribute('aria-label');
});
body.addEventListener('click', ({ target }) => target.closest('button')?.focus());
body.addEventListener('keydown', event => {
  const cell = event.target.closest('td');
  const row = cell.parentNode.sectionRowIndex, column = cell.cellIndex;
  const to = { ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
    ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
    Home: [row, 1], End: [row, body.rows[row].cells.length - 1],
    PageUp: [Math.max(row - 10, 0), column],
    PageDown: [Math.min(row + 10, body.rows.length - 1), column] }[event.key];
  if (!to) return;
  event.preventDefault();
  at(...to)?.focus({ preventScroll: true });
  chosen.scrollIntoView({ block: 'nearest', inline: 'nearest' });
});
"""

_LEGEND = (
    ("ok", "\N{MIDDLE DOT}", "every check passes"),
    ("failed", "3", "this many checks fail"),
    ("rescued", "\N{UPWARDS ARROW}", "passes; the guard ran the update in a wider dtype"),
)


def page(report: Report) -> str:
    """The heat map of a sweep."""
    rows = []
    for row in report.rows():
        outcomes = {(o.configuration, o.x64, o.guarded): o for o in report.of(row.id)}
        cells = [
            _cell(outcomes[place])
            for c in CONFIGURATIONS
            for place in ((c.name, c.x64, False), (c.name, c.x64, True))
            if place in outcomes
        ]
        name = escape(row.id.removeprefix("optax."))
        rows.append(
            f'<tr><th scope="row" title="{escape(row.id)}">{name}</th>{"".join(cells)}</tr>'
        )
    legend = " &ensp; ".join(
        f'<button class="key {name}" tabindex="-1" aria-hidden="true">{symbol}</button> '
        + text
        for name, symbol, text in _LEGEND
    )
    items = "".join(
        f"<li>{escape(f'{left.id}: {left.reason}')}</li>" for left in report.unbuilt
    )
    left_out = f"<h2>Not swept</h2>\n<ul>{items}</ul>\n" if items else ""
    body = (
        "<h1>Optimizers by configurations, bare beside guarded</h1>\n"
        f"<p>{escape(report.closing_line())}</p>\n<p>{legend}</p>\n"
        '<p class="dim">A configuration is the dtype of the params and, after a slash, '
        "of the gradients. Left half: bare (b), right half: guarded (g). Select a cell, "
        "or move with Tab and the arrow keys.</p>\n"
        '<div id="details" role="status" aria-live="polite" tabindex="0">'
        "No cell selected.</div>\n"
        f'<div class="map"><table>\n{_head()}<tbody>\n' + "\n".join(rows) + "\n</tbody>"
        f"</table></div>\n{left_out}"
    )
    return document("dtypeguard sweep: every optimizer", body, _STYLE, _SCRIPT)


def _head() -> str:
    narrow = sum(not configuration.x64 for configuration in CONFIGURATIONS)
    wide = len(CONFIGURATIONS) - narrow
    names = "".join(
        f'<th scope="colgroup" colspan="2" class="first">{escape(c.name)}</th>'
        for c in CONFIGURATIONS
    )
    halves = '<th scope="col" class="first">b</th><th scope="col">g</th>'
    return (
        f'<thead>\n<tr><th></th><th colspan="{2 * narrow}" class="first">x64 off</th>'
        f'<th colspan="{2 * wide}" class="first">x64 on</th></tr>\n'
        f'<tr><th scope="col">optimizer</th>{names}</tr>\n'
        f"<tr><th></th>{halves * len(CONFIGURATIONS)}</tr>\n</thead>\n"
    )


def _cell(outcome: Outcome) -> str:
    state = "failed" if outcome.failures else "rescued" if outcome.rescues else "ok"
    symbols = {name: symbol for name, symbol, _ in _LEGEND}
    symbol = str(len(outcome.failures)) if outcome.failures else symbols[state]
    first = "" if outcome.guarded else ' class="first"'
    return (
        f'<td{first}><button class="{state}" aria-pressed="false" '
        f'aria-label="{escape(_details(outcome))}">{symbol}</button></td>'
    )


def _details(outcome: Outcome) -> str:
    who = "guarded" if outcome.guarded else "bare"
    lines = [f"{outcome.id}, {who}, {where(outcome)}:"]
    lines += [f"  {line}" for line in outcome.origins]
    lines += [f"  {check}: {reason}" for check, reason in outcome.failures.items()]
    lines += [] if outcome.failures else ["  every check passes"]
    lines += [f"  rescued: {outcome.rescues} warnings"] if outcome.rescues else []
    lines += [f"  {check} skipped: {reason}" for check, reason in outcome.skipped.items()]
    return "\n".join(lines)
