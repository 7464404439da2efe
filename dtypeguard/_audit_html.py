"""The page of one audit: a table of the leaves, with the lines of source."""

from html import escape

from ._audit_report import AuditReport
from ._html import document
from ._origins import Origin

_COLUMNS = ("leaf", "was", "is", "origin", "forced by")


def page(report: AuditReport) -> str:
    """See `AuditReport.to_html`."""
    parts = [f"<h1>audit: {escape(report.headline)}</h1>"]
    if report.error is not None:
        parts += [f"<p><code>{escape(line)}</code></p>" for line in report.error.lines()]
    if report.drifts:
        rows = [
            (
                f"<code>{escape(drift.name)}</code>",
                escape(drift.before),
                escape(drift.after),
                _line(drift.origin),
                _line(drift.cause),
            )
            for drift in report.drifts
        ]
        head = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows
        )
        parts.append(
            f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"
        )
    texts = filter(None, (report.wide_summary, report.advice))
    parts += [f'<p class="lines">{escape(text)}</p>' for text in texts]
    return document("dtypeguard audit", "\n".join(parts))


def _line(origin: Origin | None) -> str:
    if origin is None:
        return ""
    return f"{escape(str(origin))}<br><code>{escape(origin.code)}</code>"
