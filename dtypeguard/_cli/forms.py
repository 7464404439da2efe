"""The forms of what a command finds: text, JSON, Markdown, HTML, annotations of GitHub."""

import argparse
import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from .._audit.report import AuditReport
from .._explain.explain import printed
from .._leaves.rows import columns, shown_fields
from .._lines.recompiled import Recompiled
from .._lock.check import Locked
from .._precision.html import document
from .._precision.report import PrecisionReport
from .._source.files import is_installed
from .._source.origin import Origin
from .output import UsageError, default_form, write, writer

_IN_FILES = "json", "markdown", "html"


class Annotation(NamedTuple):
    """What is found on a line."""

    origin: Origin | None
    title: str
    text: str
    level: str = "error"


class FormedReport(NamedTuple):
    """What a command found, if it has no report of its own."""

    text: str
    findings: Sequence[Annotation]
    data: Mapping[str, Any]

    def __str__(self) -> str:
        return self.text


def deliver(
    report: Any, options: argparse.Namespace, is_ok: bool = True, style: str = ""
) -> int:
    """Writes a report into files, and prints it in the form that is asked for."""
    files = _files(options)
    for form, name in files.items():
        write(name, formed(report, form))
    form = options.format or default_form()
    if "-" in files.values():
        return 0 if is_ok else 1
    if form not in ("text", "github"):
        write("-", formed(report, form).rstrip())
        return 0 if is_ok else 1
    show = writer()
    headline, *lines = str(report).rstrip().splitlines()
    show(headline, f"bold {style}".rstrip() if is_ok else "bold red")
    for line in lines:
        show(line)
    if form == "github":
        for line in annotations(findings(report)):
            write("-", line)
    return 0 if is_ok else 1


def formed(report: Any, form: str) -> str:
    """A report in a form: "text", "json", "markdown" or "html"."""
    if make := getattr(report, f"to_{form}", None):
        return make()
    headline, _, rest = str(report).removeprefix("# ").partition("\n")
    if form == "json":
        return json.dumps(report.data, indent=1, default=shown_fields)
    if form == "markdown":
        return f"**{headline}**\n" + f"\n```text\n{rest}\n```\n" * bool(rest)
    if form == "html":
        below = f'<p class="lines mono">{escape(rest)}</p>' if rest else ""
        return document("dtypeguard", f"<h1>{escape(headline)}</h1>\n{below}")
    return str(report)


def _files(options: argparse.Namespace) -> dict[str, str]:
    """The files of the report by their form; `-` is standard output."""
    named = ((form, vars(options).get(form)) for form in _IN_FILES)
    return {form: name for form, name in named if name is not None}


def check_files(options: argparse.Namespace, **more: str) -> None:
    """Refuses a file before long work, not after it; leaves what the files hold."""
    files, command = _files(options) | more, options.command
    write_as = lambda forms: " ".join(f"--{x} {command}.{x}" for x in forms)
    forms = [form for form, name in files.items() if name == "-"]
    forms += [options.format] * (options.format not in (None, *forms))
    if len(forms) > 1:
        advice = f"--{forms[0]} {write_as(forms[1:])}"
        raise UsageError(f"only one form can be printed. Give the others a FILE: {advice}")
    for form, name in files.items():
        if name == "-":
            continue
        is_new = not os.path.exists(name)
        try:
            with open(name, "a", encoding="utf-8"):
                pass
        except OSError as error:
            raise UsageError(
                f"--{form} {name!r} cannot be written: {error.strerror}. "
                f"Write for example: dtypeguard {command} {write_as([form])}"
            ) from None
        if is_new:
            os.remove(name)


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
        Annotation(x.origin, "wide products", f"{100 * x.share:.0f}% runs wide", "notice")
        for x in report.costs
    ]
    if report.not_finite is not None:
        made.append(Annotation(report.not_finite, "not finite", report.headline))
    return made or [Annotation(None, "precision", report.headline, "notice")]


def of_lock(locked: Locked, update: str) -> FormedReport:
    """What a check of a lock found."""
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
    error: BaseException | None,
    lines: Sequence[str],
    functions: Iterable[Recompiled],
) -> FormedReport:
    """What a run found: the notes on the error that ended it, and what compiled again."""
    made, notes, data = list[Annotation](), list[str](), dict[str, Any](error=None)
    for part in printed(error) if error is not None else ():
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
        for change in function.types:
            line = change.why.root or change.why.begun
            text = f"{change.path}: {change.text}"
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
