"""What an audit found, as text, JSON, Markdown and HTML."""

import collections
import dataclasses
import json
from typing import Literal

from .._leaves.public import public
from .._leaves.rows import columns
from .drift import Drift, WideOperation
from .html import page
from .origins import Origin
from .trace_error import TraceError


@public
@dataclasses.dataclass(frozen=True)
class AuditReport:
    """What `dtypeguard.audit` or `audit_step` found; `print` it.

    Attributes:
        drifts: the leaves that changed.
        wide_operations: 64-bit floating operations although no input is 64-bit.
        compilations: how often a jitted step compiles, 1 or 2; None if it does not trace.
        error: why it does not trace; None if it does.
        refusal: why `dtypeguard.guard` or `guard_step` does not mend this, empty if for
            the same reason; None if it does, or if all is well.
        name: what to call the optimizer or step in the advice at the end.
        subject: "optimizer" or "step".
        remedy: what mends a step, as a sentence.
    """

    drifts: tuple[Drift, ...] = ()
    wide_operations: tuple[WideOperation, ...] = ()
    compilations: int | None = None
    error: TraceError | None = None
    refusal: str | None = None
    name: str = "opt"
    subject: Literal["optimizer", "step"] = "optimizer"
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Whether it traces and nothing drifts."""
        return not self.drifts and self.error is None

    @property
    def headline(self) -> str:
        """One sentence that says how it went."""
        if self.error is not None:
            return f"the {self.error.function} does not trace."
        if not self.drifts:
            return f"no leaf changed its type in one {self._call}."
        groups = collections.Counter((d.where, d.kind) for d in self.drifts)
        parts = []
        for (where, kind), n in groups.items():
            one, many = _LEAVES[where]
            change = _CHANGES[kind]
            if (where, kind) == ("updates", "dtype"):
                change = "would promote a param"
            parts.append(f"{_counted(n, one, many)} {change}")
        return f"{', '.join(parts)} in one {self._call}."

    @property
    def _call(self) -> str:
        return "step" if self.subject == "step" else "update"

    @property
    def advice(self) -> str:
        """What to write; empty if all is well."""
        if self.ok:
            return ""
        if self.refusal is None:
            return self.remedy or f"Wrap the optimizer: dtypeguard.guard({self.name})."
        is_step = self.subject == "step"
        if self.error and "required keyword-only argument" in self.error.message:
            asks = "audit_step(..., kwargs" if is_step else "audit(..., extra_args"
            return f"Hand in what it asks for: dtypeguard.{asks}={{...}})."
        guard = "dtypeguard.guard_step" if is_step else "dtypeguard.guard"
        return f"{guard} does not mend this" + (
            f": {self.refusal}" if self.refusal else "."
        )

    @property
    def wide_summary(self) -> str:
        """How many operations compute in 64 bits, and where; empty if none does."""
        if not self.wide_operations:
            return ""
        arrays = sum(wide.is_array for wide in self.wide_operations)
        lines = dict.fromkeys(str(w.origin) for w in self.wide_operations if w.origin)
        first = ", ".join(list(lines)[:3]) + (", ..." if len(lines) > 3 else "")
        return (
            f"{_counted(len(self.wide_operations), 'operation', 'operations')} in 64 bits "
            f"though no input is ({arrays} on arrays): {first}"
        )

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Path, types, origin and cause of every drift, as text."""
        width = max((len(drift.before) for drift in self.drifts), default=0)
        return [
            (
                drift.name,
                f"{drift.before:<{width}} -> {drift.after}",
                str(drift.origin or ""),
                f"forced by {drift.cause}" if drift.cause else "",
            )
            for drift in self.drifts
        ]

    def lines(self) -> list[str]:
        """What is wrong, each leaf on a line with the lines of source behind it."""
        errors = [] if self.error is None else self.error.lines()
        return errors + columns(self.rows())

    def __str__(self) -> str:
        lines = [f"audit: {self.headline}", *(f"  {line}" for line in self.lines())]
        return "\n".join(filter(None, [*lines, self.wide_summary, self.advice]))

    def to_json(self) -> str:
        """All of it as JSON."""
        return json.dumps({"ok": self.ok, **dataclasses.asdict(self)}, indent=1)

    def to_markdown(self) -> str:
        """A heading, a table with the lines of source, and the advice."""
        return markdown(self)

    def to_html(self) -> str:
        """One self-contained page that needs no network."""
        texts = filter(None, (self.wide_summary, self.advice))
        return page(self.headline, self.error, self.drifts, texts)


_LEAVES = {
    "state": ("state leaf", "state leaves"),
    "updates": ("update", "updates"),
    "carry": ("leaf of the carry", "leaves of the carry"),
}
_CHANGES = {
    "dtype": "changed dtype",
    "weak_type": "changed weak type",
    "shape": "changed shape",
    "structure": "changed structure",
}


def _counted(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def markdown(report: AuditReport) -> str:
    """See `AuditReport.to_markdown`."""
    lines = [f"**audit: {report.headline}**", ""]
    if report.error is not None:
        lines += [f"- {_code(line)}" for line in report.error.lines()] + [""]
    if report.drifts:
        lines += ["| leaf | was | is | origin | forced by |", "|---|---|---|---|---|"]
        for d in report.drifts:
            cells = (_code(d.name), d.before, d.after, _line(d.origin), _line(d.cause))
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    for text in filter(None, (report.wide_summary, report.advice)):
        first, _, rows = text.partition("\n")
        lines += [first, *(["", "```text", rows, "```"] if rows else []), ""]
    return "\n".join(lines).rstrip() + "\n"


def _line(origin: Origin | None) -> str:
    return f"{origin} {_code(origin.code)}" if origin else ""


def _code(text: str) -> str:
    text = text.replace("|", "\\|")
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"
