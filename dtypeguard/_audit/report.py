"""What an audit found: its records, sentences, text and JSON."""

import collections
import dataclasses
import json
from collections.abc import Hashable, Sequence
from typing import Any, Literal

from .._leaves.groups import of_holders
from .._leaves.rows import rounding, shown_fields
from .._leaves.table import CAUSES, FEW, and_more, arrows, columns, grouped
from .._leaves.types import public
from .._lines.drift import Drift
from .._source.origin import Origin, Why

Kind = Literal["optimizer", "step"]
Cells = tuple[str, ...]
_EXPLAIN = (
    " Call it within dtypeguard.explain(): the note on the error names the line to change."
)


@dataclasses.dataclass(frozen=True)
class WideOperation:
    """A 64-bit floating-point operation in a program without 64-bit inputs."""

    primitive: str
    type: str  # of its result: "float64[]", "float64[3,2]"
    is_array: bool
    origin: Origin | None


@dataclasses.dataclass(frozen=True)
class ChangedConstant:
    """A leaf of a carry that is no array and comes back as another value.

    `equinox.filter_jit` holds it as a constant of the program: the Python numbers of an
    Equinox module, functions and strings.
    """

    path: str  # begins with the name of the parameter
    before: str  # its value before the step
    after: str

    def __str__(self) -> str:
        return (
            f"{self.path} is {self.before}, then {self.after}: a constant of the program, "
            "which compiles anew for each value"
        )


@dataclasses.dataclass(frozen=True)
class TraceError:
    """Why `init`, `update` or a step does not trace."""

    function: str  # "init", "update" or "step"
    message: str  # the first line of the error; all of a `DtypeDriftError`
    types: tuple[str, ...]  # the two that disagree; empty if the error names none
    origin: Origin | None  # the innermost line outside JAX and dtypeguard that raised it

    @property
    def is_of_dtypes(self) -> bool:
        """Whether two types disagree, and not two shapes such as `(3,)` and `(4,)`."""
        return bool(self.types) and not self.types[0].startswith("(")

    @property
    def is_of_call(self) -> bool:
        """Whether it is a `TypeError` outside of the user's own functions."""
        is_inside = self.origin is not None and self.origin.outermost is not None
        return self.message.startswith("TypeError") and not is_inside

    def lines(self) -> list[str]:
        """The two types, the user's line and the message."""
        types = " and ".join(self.types)
        where = f"{self.origin.place}  {self.origin.users.code}" if self.origin else ""
        head = filter(None, [types and f"{types} disagree", where])
        return [*head, *self.message.splitlines()]


def wide_summary(found: Sequence[WideOperation]) -> str:
    """How many operations compute in 64 bits, and on which lines; empty if none does."""
    if not found:
        return ""
    arrays = sum(each.is_array for each in found)
    lines = dict.fromkeys(str(each.origin) for each in found if each.origin)
    first = ", ".join(list(lines)[:3]) + (", ..." if len(lines) > 3 else "")
    operations = "1 operation" if len(found) == 1 else f"{len(found)} operations"
    return f"{operations} in 64 bits though no input is ({arrays} on arrays): {first}"


def constants_summary(found: Sequence[ChangedConstant]) -> str:
    """The first of them and their number; empty if there is none."""
    more = f" (and {len(found) - 1} more)" if found[1:] else ""
    return f"{found[0]}{more}. Begin a number with jnp.asarray." if found else ""


@public
@dataclasses.dataclass(frozen=True, repr=False)
class AuditReport:
    """The result of `dtypeguard.audit`; `print` it.

    Attributes:
        drifts: the leaves that changed.
        wide_operations: the 64-bit floating-point operations, if no input is 64-bit.
        changed_constants: the leaves of the carry that are no arrays and change.
        compilations: how often a jitted step compiles: 1, or 2 if more than once; None if
            it does not trace.
        error: why it does not trace; None if it does.
        refusal: why `dtypeguard.guard` or `guard_step` does not fix what is wrong; None
            if it does.
        name: what to call the optimizer or step in the advice at the end.
        subject: "optimizer" or "step".
        remedy: what fixes a step, as a sentence.
    """

    drifts: tuple[Drift, ...] = ()
    wide_operations: tuple[WideOperation, ...] = ()
    changed_constants: tuple[ChangedConstant, ...] = ()
    compilations: int | None = None
    error: TraceError | None = None
    refusal: str | None = None
    name: str = "opt"
    subject: Kind = "optimizer"
    remedy: str = ""
    note: str = dataclasses.field(default="", repr=False)  # the types that were tried

    @property
    def summaries(self) -> tuple[str, ...]:
        """What was found besides drift, as sentences; empty ones where nothing was."""
        return wide_summary(self.wide_operations), constants_summary(self.changed_constants)

    @property
    def ok(self) -> bool:
        """Whether it traces and nothing drifts."""
        return not self.drifts and self.error is None

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        if self.error is not None:
            return f"the {self.error.function} does not trace."
        call = "step" if self.subject == "step" else "update"
        if not self.drifts:
            return f"no leaf changed its type in one {call}."
        groups = collections.Counter((d.where, d.kind) for d in self.drifts)
        parts = []
        for (where, kind), n in groups.items():
            change = f"changed {kind.replace('_', ' ')}"
            if (where, kind) == ("updates", "dtype"):
                change = "would promote a param"
            parts.append(f"{n} {_LEAVES[where][n > 1]} {change}")
        return f"{', '.join(parts)} in one {call}."

    @property
    def advice(self) -> str:
        """What to write; empty if all is well."""
        if self.ok:
            return ""
        is_step = self.subject == "step"
        guard = "dtypeguard.guard_step" if is_step else "dtypeguard.guard"
        if self.refusal is None:
            return self.remedy or f"Wrap the optimizer: {guard}({self.name})."
        if self.error and "required keyword-only argument" in self.error.message:
            asks = "audit(..., kwargs" if is_step else "audit(..., extra_args"
            return f"Pass the arguments that it requires: dtypeguard.{asks}={{...}})."
        if self.error is None or self.refusal != self.error.message:
            return f"{guard} does not fix this: {self.refusal}"
        explains = is_step and self.error.is_of_dtypes
        return f"{guard} does not fix this.{_EXPLAIN if explains else ''}"

    @property
    def _paragraphs(self) -> list[str]:
        """What the analyses other than that of drift say, and what to write."""
        changed = (d for d in self.drifts if d.kind == "dtype")
        cast = (d.after if d.was_weak else d.before for d in changed)  # what to cast to
        lost = rounding(cast) if self.refusal is None else ""
        return [text for text in (*self.summaries, self.note, self.advice, lost) if text]

    def rows(self) -> Sequence[Cells]:
        """Path, types, origin and cause of every drift, as text."""
        changes = arrows([(d.before, d.after) for d in self.drifts])
        pairs = zip(self.drifts, changes)
        return [(d.name, change, *Why(d.origin, d.cause).places()) for d, change in pairs]

    def lines(self) -> list[str]:
        """The error, then one line for each drift."""
        errors = [] if self.error is None else self.error.lines()
        return errors + (columns(self.rows()) if self.drifts else [])

    def __repr__(self) -> str:
        return f"<AuditReport: {self.headline}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # in a notebook
        printer.text(str(self))

    def __str__(self) -> str:
        errors = [] if self.error is None else self.error.lines()
        rows, hint = self._short()
        lines = [f"  {line}" for line in (*errors, *rows)]
        return "\n".join([f"audit: {self.headline}", *lines, *self._paragraphs, *hint])

    def _short(self) -> tuple[list[str], list[str]]:
        """A line for each drift or for many of one cause, and where all of them are."""
        rows, shown = dict(zip(self.drifts, self.rows())), list[Cells]()
        groups = grouped(self.drifts, _cause)
        for group in groups[:CAUSES]:
            if len(group) <= FEW:
                shown += [rows[drift] for drift in group]
                continue
            _, change, *named = rows[group[0]]
            is_one = len({(drift.before, drift.after) for drift in group}) == 1
            name = of_holders([drift.name for drift in group])
            shown.append((name, change if is_one else "", *named))
        text = [*columns(shown), *and_more(max(len(groups) - CAUSES, 0))]
        is_cut = len(shown) < len(rows)
        return text, ["Every leaf: the report's drifts, or --json."] * is_cut

    def to_json(self) -> str:
        """The whole report as JSON, but for the sentences."""
        fields = {"ok": self.ok, **shown_fields(self)}
        return json.dumps(fields, indent=1, default=shown_fields)


def _cause(drift: Drift) -> Hashable:
    """What leaves that drift for one reason have in common."""
    types = (drift.before, drift.after) if drift.kind == "dtype" else ()
    return drift.where, drift.kind, types, str(drift.origin), str(drift.cause)


_LEAVES = {
    "state": ("state leaf", "state leaves"),
    "updates": ("update", "updates"),
    "carry": ("leaf of the carry", "leaves of the carry"),
}
