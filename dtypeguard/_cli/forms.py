"""The forms of what a command finds: text, JSON, Markdown, HTML, annotations of GitHub."""

import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from .._audit.page import document
from .._audit.report import AuditReport
from .._explain.explain import printed
from .._leaves.rows import columns, shown_fields
from .._lines.recompiled import Recompiled
from .._lock.check import Locked
from .._precision.report import PrecisionReport
from .._source.files import is_installed
from .._source.origin import Origin


class Annotation(NamedTuple):
    """What is found on a line.

    Attributes:
        origin: the line; None if there is none.
        title: in a few words.
        text: what to read there.
        level: "error", "warning" or "notice", as GitHub has them.
    """

    origin: Origin | None
    title: str
    text: str
    level: str = "error"


class FormedReport(NamedTuple):
    """What a command found, if it has no report of its own.

    Attributes:
        text: all of it.
        findings: the lines.
        data: all of it, for JSON.
    """

    text: str
    findings: Sequence[Annotation]
    data: Mapping[str, Any]


def formed(report: Any, form: str) -> str:
    """A report in a form: "text", "json", "markdown", "html" or "github"."""
    text = report.text if isinstance(report, FormedReport) else str(report)
    if form == "github":
        return "\n".join([text, *annotations(findings(report))])
    if make := getattr(report, f"to_{form}", None):
        return make()
    headline, _, rest = text.removeprefix("# ").partition("\n")
    if form == "json":
        return json.dumps(report.data, indent=1, default=_plain)
    if form == "markdown":
        return f"**{headline}**\n" + f"\n```text\n{rest}\n```\n" * bool(rest)
    if form == "html":
        below = f'<p class="lines mono">{escape(rest)}</p>' if rest else ""
        return document("dtypeguard", f"<h1>{escape(headline)}</h1>\n{below}")
    return text


def annotations(findings: Iterable[Annotation]) -> list[str]:
    """The commands that have GitHub show findings beside the lines of a pull request.

    References:
        GitHub Docs, "Workflow commands for GitHub Actions",
        https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    """
    lines = []
    for origin, title, text, level in findings:
        properties = {"title": f"dtypeguard: {title}"}
        line = origin and origin.users
        if line and not is_installed(line.file):
            properties = {"file": _file(line.file), "line": str(line.line), **properties}
        told = ",".join(f"{k}={_escaped(v, ':,')}" for k, v in properties.items())
        lines.append(f"::{level} {told}::{_escaped(text)}")
    return lines


@functools.singledispatch
def findings(report: Any) -> list[Annotation]:
    """What a report finds, line by line."""
    return list(report.findings)


@findings.register
def _(report: AuditReport) -> list[Annotation]:
    found: dict[Origin | None, list[Sequence[str]]] = {}
    for drift, row in zip(report.drifts, report.rows()):
        line = drift.origin or drift.cause
        found.setdefault(line and line.users, []).append(row)
    made = [
        Annotation(line, "types change", "\n".join([*columns(rows), report.advice]))
        for line, rows in found.items()
    ]
    if report.error is not None:
        text = "\n".join([*report.error.lines(), report.advice])
        made.append(Annotation(report.error.origin, report.headline, text))
    return made


@findings.register
def _(report: PrecisionReport) -> list[Annotation]:
    made = [
        Annotation(x.origin, f"{100 * x.share:.0f}% of the error", x.remedy, "warning")
        for x in report.fix
    ]
    made += [
        Annotation(x.origin, f"{100 * x.saves:.0f}% runs wide", x.remedy, "notice")
        for x in report.costs
        if x.saves >= 0.01
    ]
    if report.not_finite is not None:
        made.append(Annotation(report.not_finite, "not finite", report.headline))
    return made or [Annotation(None, "precision", report.headline, "notice")]


def of_lock(locked: Locked, update: str) -> FormedReport:
    """What a check of a lock found.

    Args:
        locked: the step beside its lock.
        update: the command that accepts what differs.
    """
    step, path = locked.now.lock.step, locked.path
    causes = [] if locked.holds else locked.causes()
    made = [
        Annotation(next(iter(x.lines), None), f"not as locked in {path}", "\n".join(x.text))
        for x in causes
    ]
    text = f"{step} is as locked in {path}." if locked.holds else locked.report(update)
    data = {"step": step, "path": path, "ok": locked.holds}
    return FormedReport(text, made, {**data, "causes": [x.data for x in causes]})


def of_run(
    errors: Iterable[BaseException],
    lines: Sequence[str],
    functions: Iterable[Recompiled],
) -> FormedReport:
    """What a run found: the notes on the error that ended it, and what compiled again.

    Args:
        errors: the only one, or none.
        lines: the list of what was compiled again.
        functions: those in it.
    """
    made, notes, data = list[Annotation](), list[str](), dict[str, Any](error=None)
    for part in [part for error in errors for part in printed(error)]:
        rows = getattr(part, "dtypeguard_rows", ())
        ours = (str(x) for x in getattr(part, "__notes__", ()))
        note = next((x for x in ours if x.startswith("dtypeguard: ")), "")
        data["error"] = data["error"] or {
            "type": type(part).__name__,
            "message": str(part),
            "note": note,
            "leaves": [row._asdict() for row in rows],
        }
        if note:
            title = note.partition("\n")[0].removeprefix("dtypeguard: ")
            line = next((row.origin for row in rows if row.origin), None)
            made.append(Annotation(line, title, note))
            notes.append(note)
    for function in functions:
        for change in function.types.values():
            line = change.why.root or change.why.begun
            text = f"{change.path}: {change.before} -> {change.after}"
            title = f"{function.name} was compiled again"
            made.append(Annotation(line, title, text, "warning"))
    text = "\n".join([*notes, *lines]) or "dtypeguard run: nothing to note."
    return FormedReport(text, made, {**data, "compiled_again": [*lines]})


def _file(path: str) -> str:
    """A file as the repository names it."""
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    inside = os.path.join(os.path.realpath(root), "")
    path = os.path.realpath(path)
    return path.removeprefix(inside).replace(os.sep, "/")


def _escaped(text: str, more: str = "") -> str:
    for character in ("%", "\r", "\n", *more):
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _plain(value: Any) -> Any:
    return shown_fields(value)
