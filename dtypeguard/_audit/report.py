"""What an audit found, as text, JSON, Markdown and HTML."""

import collections
import dataclasses
import json
from collections.abc import Sequence
from html import escape
from typing import Literal

from .._find.drift import Drift
from .._find.wide import WideOperation
from .._leaves.public import public
from .page import document
from .table import Code, Table, markdown_code
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
    def is_mended(self) -> bool:
        """Whether a guard mends what is wrong."""
        return self.refusal is None

    @property
    def headline(self) -> str:
        """One sentence that says how it went."""
        if self.error is not None:
            return f"the {self.error.function} does not trace."
        call = "step" if self.subject == "step" else "update"
        if not self.drifts:
            return f"no leaf changed its type in one {call}."
        groups = collections.Counter((d.where, d.kind) for d in self.drifts)
        parts = []
        for (where, kind), n in groups.items():
            change = _CHANGES[kind]
            if (where, kind) == ("updates", "dtype"):
                change = "would promote a param"
            parts.append(f"{_counted(n, *_LEAVES[where])} {change}")
        return f"{', '.join(parts)} in one {call}."

    @property
    def advice(self) -> str:
        """What to write; empty if all is well."""
        if self.ok:
            return ""
        is_step = self.subject == "step"
        guard = "dtypeguard.guard_step" if is_step else "dtypeguard.guard"
        if self.is_mended:
            return self.remedy or f"Wrap the optimizer: {guard}({self.name})."
        if self.error and "required keyword-only argument" in self.error.message:
            asks = "audit_step(..., kwargs" if is_step else "audit(..., extra_args"
            return f"Give it what it asks for: dtypeguard.{asks}={{...}})."
        reason = f": {self.refusal}" if self.refusal else "."
        return f"{guard} does not mend this{reason}"

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

    @property
    def table(self) -> Table:
        """Path, types, origin and cause of every drift."""
        head = ("leaf", "was", "is", "origin", "forced by")
        width = max((len(drift.before) for drift in self.drifts), default=0)
        rows = [(Code(d.name), d.before, d.after, d.origin, d.cause) for d in self.drifts]
        text = [
            (
                drift.name,
                f"{drift.before:<{width}} -> {drift.after}",
                drift.origin.place if drift.origin else "",
                f"forced by {drift.cause.place}" if drift.cause else "",
            )
            for drift in self.drifts
        ]
        return Table(head, rows, text)

    def rows(self) -> Sequence[Sequence[str]]:
        """Path, types, origin and cause of every drift, as text."""
        return self.table.text

    def lines(self) -> list[str]:
        """What is wrong, each leaf on a line with the lines of source behind it."""
        errors = [] if self.error is None else self.error.lines()
        return errors + self.table.lines()

    def __str__(self) -> str:
        lines = [f"audit: {self.headline}", *(f"  {line}" for line in self.lines())]
        return "\n".join(filter(None, [*lines, self.wide_summary, self.advice]))

    def to_json(self) -> str:
        """All of it as JSON."""
        public = lambda pairs: {k: x for k, x in pairs if not k.startswith("_")}
        found = dataclasses.asdict(self, dict_factory=public)
        return json.dumps({"ok": self.ok, **found}, indent=1)

    def to_markdown(self) -> str:
        """A heading, a table with the lines of source, and the advice."""
        lines = [f"**audit: {self.headline}**", ""]
        if self.error is not None:
            lines += [f"- {markdown_code(line)}" for line in self.error.lines()] + [""]
        if self.drifts:
            lines += [*self.table.to_markdown(), ""]
        for text in filter(None, (self.wide_summary, self.advice)):
            first, _, rows = text.partition("\n")
            lines += [first, *(["", "```text", rows, "```"] if rows else []), ""]
        return "\n".join(lines).rstrip() + "\n"

    def to_html(self) -> str:
        """One self-contained page that needs no network."""
        parts = [f"<h1>audit: {escape(self.headline)}</h1>"]
        if self.error is not None:
            code = map(escape, self.error.lines())
            parts += [f"<p><code>{line}</code></p>" for line in code]
        parts += [self.table.to_html()] if self.drifts else []
        texts = filter(None, (self.wide_summary, self.advice))
        parts += [f'<p class="lines">{escape(text)}</p>' for text in texts]
        return document("dtypeguard audit", "\n".join(parts))


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
