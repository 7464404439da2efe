"""The sweep as a heat map: optimizers by configurations, bare beside guarded.

One page that opens offline. A cell says by its symbol and pattern, not by its hue alone,
whether checks failed; selected, by mouse or keyboard, it says which, why and on what line.
"""

from collections.abc import Sequence
from html import escape

from .._audit.page import document
from .report import Report
from .sweep import CONFIGURATIONS, Outcome

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
#told { border-left: 4px solid var(--line); background: var(--soft); padding: .6rem 1rem;
  height: 12rem; overflow: auto; white-space: pre-wrap;
  font: 13px/1.5 ui-monospace, monospace; }
"""

_SCRIPT = """
const cells = [...document.querySelectorAll('.map tbody tr')].map(
  row => [...row.querySelectorAll('button')]);
const told = document.getElementById('told');
let chosen = cells.length ? cells[0][0] : null;
function choose(cell) {
  if (chosen) { chosen.tabIndex = -1; chosen.setAttribute('aria-pressed', 'false'); }
  chosen = cell;
  cell.tabIndex = 0;
  cell.setAttribute('aria-pressed', 'true');
  told.textContent = cell.getAttribute('aria-label');
}
cells.flat().forEach(cell => { cell.tabIndex = -1; });
if (chosen) chosen.tabIndex = 0;
const table = document.querySelector('.map');
table.addEventListener('focusin', event => {
  if (event.target.matches('tbody button')) choose(event.target);
});
table.addEventListener('click', event => {
  if (event.target.matches('tbody button')) event.target.focus();
});
table.addEventListener('keydown', event => {
  const row = cells.findIndex(row => row.includes(event.target));
  if (row < 0) return;
  const column = cells[row].indexOf(event.target);
  const last = cells[row].length - 1;
  const to = { ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
    ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
    Home: [row, 0], End: [row, last],
    PageUp: [Math.max(row - 10, 0), column],
    PageDown: [Math.min(row + 10, cells.length - 1), column] }[event.key];
  const cell = to && cells[to[0]] && cells[to[0]][to[1]];
  if (to) event.preventDefault();
  if (cell) { cell.focus({ preventScroll: true });
    cell.scrollIntoView({ block: 'nearest', inline: 'nearest' }); }
});
"""

_LEGEND = (
    ("ok", "\N{MIDDLE DOT}", "every check passes"),
    ("failed", "3", "so many checks fail"),
    ("rescued", "\N{UPWARDS ARROW}", "passes; the guard ran the update in a wider dtype"),
)


def page(report: Report) -> str:
    """The heat map of a whole sweep."""
    by_cell = {(o.id, o.configuration, o.x64, o.guarded): o for o in report.outcomes}
    rows = []
    for row in report.rows():
        cells = [
            _cell(by_cell[row.id, configuration.name, configuration.x64, guarded])
            for configuration in CONFIGURATIONS
            for guarded in (False, True)
            if (row.id, configuration.name, configuration.x64, guarded) in by_cell
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
    body = (
        "<h1>Optimizers by configurations, bare beside guarded</h1>\n"
        f"<p>{escape(report.closing_line())}</p>\n<p>{legend}</p>\n"
        '<p class="dim">A configuration is the dtype of the params, and after a slash that '
        "of the gradients. Left half of each: bare (b), right half: guarded (g). Select a "
        "cell, or move with Tab and the arrow keys.</p>\n"
        '<div id="told" role="status" aria-live="polite" tabindex="0">'
        "No cell selected.</div>\n"
        f'<div class="map"><table>\n{_head()}<tbody>\n' + "\n".join(rows) + "\n</tbody>"
        f"</table></div>\n{_left_out(report)}"
    )
    return document("dtypeguard audit: every optimizer", body, _STYLE, _SCRIPT)


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
        f'aria-label="{escape(_told(outcome))}">{symbol}</button></td>'
    )


def _told(outcome: Outcome) -> str:
    who = "guarded" if outcome.guarded else "bare"
    x64 = "on" if outcome.x64 else "off"
    lines = [f"{outcome.id}, {who}, {outcome.configuration}, x64 {x64}:"]
    lines += [f"  {line}" for line in outcome.origins]
    lines += [f"  {check}: {reason}" for check, reason in outcome.failures.items()]
    lines += [] if outcome.failures else ["  every check passes"]
    lines += [f"  rescued: {outcome.rescues} warnings"] if outcome.rescues else []
    lines += [f"  {check} skipped: {reason}" for check, reason in outcome.skipped.items()]
    return "\n".join(lines)


def _left_out(report: Report) -> str:
    return _list("Not swept", [f"{left.id}: {left.reason}" for left in report.unbuilt])


def _list(title: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>{title}</h2>\n<ul>{items}</ul>\n" if lines else ""
