"""What an audit found: its records, sentences, text and JSON."""

import collections
import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Literal

from .._blame.drift import Drift
from .._leaves.cast_text import rounding_sentence
from .._leaves.key_path import TreeName, path_text
from .._leaves.leaf_change import LeafChange
from .._leaves.table import Table, shown_fields
from .._leaves.types import public
from .._source.origin import Origin, Why

SubjectKind = Literal["optimizer", "step"]

# How a headline names one leaf and several.
_LEAF = {"state": "state leaf", "updates": "update", "carry": "leaf of the carry"}
_LEAVES = {"state": "state leaves", "updates": "updates", "carry": "leaves of the carry"}
# The path of a state that is one leaf.
_STATE = (TreeName("state"),)


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
            f"{self.path}: {self.before} -> {self.after}, a constant of the program, which "
            "compiles anew for each value"
        )


@dataclasses.dataclass(frozen=True)
class TraceError:
    """Why `init`, `update` or a step does not trace."""

    function: str  # "init", "update" or "step"
    message: str  # the first line of the error; all of a `DtypeDriftError`
    types: tuple[str, ...]  # the two that disagree; empty if the error names none
    origin: Origin | None  # the innermost line outside JAX and dtypeguard that raised it
    # A `TypeError` outside of the user's own functions is of the call; the command line
    # then says what to pass.
    is_of_call: bool = dataclasses.field(default=False, repr=False, compare=False)

    def lines(self) -> list[str]:
        """The two types, the user's line and the message."""
        lines = []
        if any(self.types):
            lines.append(f"{' and '.join(self.types)} disagree")
        if self.origin:
            lines.append(f"{self.origin.place}  {self.origin.users.code}")
        return lines + self.message.splitlines()


def wide_summary(operations: Sequence[WideOperation]) -> str:
    """Returns how many operations compute in 64 bits, and where; empty for none."""
    if not operations:
        return ""
    array_count = sum(operation.is_array for operation in operations)
    text = f"{len(operations)} operations in 64 bits though no input is"
    text = f"{text} ({array_count} on arrays)"
    first = operations[0].origin
    if first is None:
        return text
    return f"{text}, first at {first}"


def constants_summary(constants: Sequence[ChangedConstant]) -> str:
    """Returns the first constant and the number of the rest; empty for none."""
    if not constants:
        return ""
    first = str(constants[0])
    if len(constants) > 1:
        first += f" (and {len(constants) - 1} more)"
    return f"{first}. Begin a number with jnp.asarray."


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
        refusal: why `dtypeguard.guard` or `guard_step` does not fix what is wrong, a guard
            with `Policy(compute_dtype=jnp.float32)` included; None if one does. Each was
            tried.
        name: what to call the optimizer or step in the advice at the end.
        subject: "optimizer" or "step".
        remedy: what fixes it, as a sentence; empty for an optimizer that a guard without a
            policy fixes.
    """

    drifts: tuple[Drift, ...] = ()
    wide_operations: tuple[WideOperation, ...] = ()
    changed_constants: tuple[ChangedConstant, ...] = ()
    compilations: int | None = None
    error: TraceError | None = None
    refusal: str | None = None
    name: str = "opt"
    subject: SubjectKind = "optimizer"
    remedy: str = ""
    note: str = dataclasses.field(default="", repr=False)  # the types that were tried
    # Whether the guarded program raises the error that the report shows anyway.
    is_same_error: bool = dataclasses.field(default=False, repr=False)

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
        # In the order of the first leaf of each kind.
        counts = collections.Counter((drift.where, drift.kind) for drift in self.drifts)
        parts = []
        for (where, kind), count in counts.items():
            noun = _LEAF[where] if count == 1 else _LEAVES[where]
            change = f"changed {kind.replace('_', ' ')}"
            # `optax.apply_updates` casts the sum, Equinox's does not.
            if where == "updates" and kind == "dtype":
                change = "would promote a param"
            parts.append(f"{count} {noun} {change}")
        return f"{', '.join(parts)} in one {call}."

    @property
    def advice(self) -> str:
        """What to write; empty if all is well."""
        if self.ok:
            return ""
        guard = "dtypeguard.guard_step" if self.subject == "step" else "dtypeguard.guard"
        if self.refusal is None:
            return self.remedy or f"Wrap the optimizer: {guard}({self.name})."
        # An error that the report shows anyway is not said twice.
        if self.error is None or not self.is_same_error:
            return f"{guard} does not fix this: {self.refusal}"
        return f"{guard} does not fix this."

    def changes(self) -> list[LeafChange]:
        """Returns the drifts as changes of leaves, with the lines of source as remedies."""
        changes = []
        for drift in self.drifts:
            lines = Why(drift.origin, drift.cause)
            places = "  ".join(place for place in lines.places() if place)
            path = drift.keys if path_text(drift.keys) else _STATE
            changes.append(LeafChange(path, drift.before, drift.after, places))
        return changes

    def __repr__(self) -> str:
        return f"<AuditReport: {self.headline}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # in a notebook
        printer.text(str(self))

    def __str__(self) -> str:
        lines = [f"audit: {self.headline}"]
        if self.error is not None:
            lines += self.error.lines()
        paragraphs = [
            str(Table("\n  ".join(lines), self.changes())),
            *self.summaries,
            self.note,
            self.advice,
            self._rounding_sentence(),
        ]
        # One is empty where nothing of its kind was found.
        return "\n".join(part for part in paragraphs if part)

    def _rounding_sentence(self) -> str:
        """Returns a line about the casts of the remedy that round; empty for none."""
        if self.refusal is not None:
            return ""
        dtype_drifts = [drift for drift in self.drifts if drift.kind == "dtype"]
        return rounding_sentence(drift.dtype_to_cast_to for drift in dtype_drifts)

    def to_json(self) -> str:
        """The whole report as JSON, but for the sentences."""
        return json.dumps(
            {"ok": self.ok, **shown_fields(self)}, indent=1, default=shown_fields
        )
