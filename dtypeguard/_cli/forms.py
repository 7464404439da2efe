"""The forms of what a command finds: text, JSON, and annotations of GitHub."""

import argparse
import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .._audit.report import AuditReport
from .._explain.unfiltered import printed
from .._leaves.rows import columns, shown_fields
from .._lines.recompiled import Recompiled
from .._lock.check import Locked, data_of_cause, text_of_cause
from .._precision.report import PrecisionReport
from .._source.files import is_installed
from .._source.origin import Origin
from .options import UsageError, default_form, write, writer


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

    def to_json(self) -> str:
        """It for programs."""
        return json.dumps(self.data, indent=1, default=shown_fields)


def deliver(
    report: Any, options: argparse.Namespace, is_ok: bool = True, style: str = ""
) -> int:
    """Writes a report into files, and prints it in the form that is asked for."""
    form = options.format or default_form()
    if options.json not in (None, "-"):
        write(options.json, report.to_json())
    if options.json == "-" or form == "json":
        write("-", report.to_json().rstrip())
        return 0 if is_ok else 1
    show = writer()
    headline, *lines = str(report).rstrip().splitlines()
    show(headline, f"bold {style}".rstrip() if is_ok else "bold red")
    for line in lines:
        show(line)
    for line in annotations(findings(report)) if form == "github" else ():
        write("-", line)
    return 0 if is_ok else 1


def check_files(options: argparse.Namespace, *more: str | None) -> None:
    """Refuses a file before long work, not after it; leaves what the files hold."""
    names = (x for x in (options.json, *more) if x not in (None, "-"))
    for name in names:
        is_new = not os.path.exists(name)
        try:
            open(name, "a").close()
        except OSError as error:
            raise UsageError(f"{name!r} cannot be written: {error.strerror}") from None
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


def _file(path: str) -> str:
    """A file as the repository names it."""
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    inside = os.path.join(os.path.realpath(root), "")
    return os.path.realpath(path).removeprefix(inside).replace(os.sep, "/")


def _escaped(text: str, more: str = "") -> str:
    for character in ("%", "\r", "\n", *more):
        text = text.replace(character, f"%{ord(character):02X}")
    return text


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
    causes = [] if locked.holds else locked.causes()[0]
    title = f"not as locked in {path}"
    made = [
        Annotation(next(iter(x.lines), None), title, "\n".join(text_of_cause(x)))
        for x in causes
    ]
    text = f"{step} is as locked in {path}." if locked.holds else locked.report(update)
    data = {"step": step, "path": path, "ok": locked.holds}
    return FormedReport(text, made, {**data, "causes": [*map(data_of_cause, causes)]})


def of_run(
    error: BaseException | None, lines: Sequence[str], functions: Iterable[Recompiled]
) -> FormedReport:
    """What a run found: the notes on the error that ended it, and what compiled again."""
    made, data = list[Annotation](), dict[str, Any](error=None)
    for part in printed(error) if error is not None else ():
        rows = getattr(part, "dtypeguard_rows", ())
        notes = (str(x) for x in getattr(part, "__notes__", ()))
        note = next((x for x in notes if x.startswith("dtypeguard: ")), "")
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
    for function in functions:
        for change in function.types:
            line = change.why.root or change.why.begun
            text = f"{change.path}: {change.text}"
            title = f"{function.name} was compiled again"
            made.append(Annotation(line, title, text, "warning"))
    return FormedReport("", made, {**data, "compiled_again": [*lines]})
