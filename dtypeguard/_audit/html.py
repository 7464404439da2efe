"""The page of one audit: a table of the leaves, with the lines of source."""

from collections.abc import Iterable, Sequence
from html import escape

from .._leaves.html import document
from .drift import Drift
from .origins import Origin
from .trace_error import TraceError

_COLUMNS = ("leaf", "was", "is", "origin", "forced by")


def page(
    headline: str, error: TraceError | None, drifts: Sequence[Drift], texts: Iterable[str]
) -> str:
    """The fields of an `AuditReport`, and what it says below them, as a page."""
    parts = [f"<h1>audit: {escape(headline)}</h1>"]
    if error is not None:
        parts += [f"<p><code>{escape(line)}</code></p>" for line in error.lines()]
    if drifts:
        rows = [
            (
                f"<code>{escape(drift.name)}</code>",
                escape(drift.before),
                escape(drift.after),
                _line(drift.origin),
                _line(drift.cause),
            )
            for drift in drifts
        ]
        head = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows
        )
        parts.append(
            f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"
        )
    parts += [f'<p class="lines">{escape(text)}</p>' for text in texts]
    return document("dtypeguard audit", "\n".join(parts))


def _line(origin: Origin | None) -> str:
    if origin is None:
        return ""
    return f"{escape(str(origin))}<br><code>{escape(origin.code)}</code>"
