"""One audit of a program: what the analyses find, and what fixes it."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from .._leaves.arguments import shown
from .._leaves.compat import set_x64
from .._leaves.types import DType
from .._lines import drift
from .._lines.drift import Drift
from .._lines.monitored import RECORD
from .._lines.why import ProgramLines
from .._program.trace import Program, TraceFailed
from . import constants, wide
from .report import AuditReport, Kind
from .trace_error import TraceError, reduce_error


class Analysis(Protocol):
    """A module that looks for one kind of fault."""

    def find(self, program: Program, lines: ProgramLines | None) -> Iterator[Any]:
        """Yields findings, each a dataclass."""
        ...

    def summary(self, found: tuple[Any, ...]) -> str:
        """A sentence on all findings; empty if there is nothing to say."""
        ...


# Every analysis but that of drift, by the name of its findings.
_ANALYSES: dict[str, Analysis] = {
    "wide_operations": wide,
    "changed_constants": constants,
}


class Advice(NamedTuple):
    """What fixes a program: see `AuditReport`."""

    refusal: str | None = None
    remedy: str = ""


class Audited(Protocol):
    """The optimizer or step of an audit."""

    name: str
    kind: Kind
    leaves: int

    def trace(self, types: Mapping[str, DType] | None = None) -> Program:
        """Traces it; see `trace`."""
        ...

    def advice(self, drifts: tuple[Drift, ...], error: TraceError | None) -> Advice:
        """What fixes it. Every remedy has been tried."""
        ...


def examine(subject: Audited, x64: bool | None) -> AuditReport:
    """Audits an optimizer or a step, with `jax_enable_x64` as it is if `x64` is None."""
    flag = contextlib.nullcontext() if x64 is None else set_x64(x64)
    with flag, RECORD, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the program warns when it runs
        about: dict[str, Any] = {"name": subject.name, "subject": subject.kind}
        try:
            program = subject.trace()
        except TraceFailed as failed:
            if failed.args == ("inputs",):
                raise
            error = reduce_error(failed.__cause__, *failed.args)
            nothing = tuple((name, ()) for name in _ANALYSES)
            about |= subject.advice((), error)._asdict()
            return AuditReport(findings=nothing, error=error, **about)
        lines = ProgramLines(program)
        drifts = tuple(drift.find(program, lines))
        found = {name: tuple(x.find(program, lines)) for name, x in _ANALYSES.items()}
        about["summaries"] = tuple(x.summary(found[name]) for name, x in _ANALYSES.items())
        about |= (subject.advice(drifts, None) if drifts else Advice())._asdict()
        is_stable = all(each.where == "updates" for each in drifts)
        is_stable &= not found["changed_constants"]
        about["compilations"] = 1 if is_stable else 2
        return AuditReport(drifts, tuple(found.items()), **about)


def left(trace: Callable[[], Program]) -> tuple[Drift, ...] | str:
    """The leaves that drift in a program, or why it does not trace."""
    try:
        return tuple(drift.find(trace(), None))
    except TraceFailed as failed:
        return reduce_error(failed.__cause__, *failed.args).message


def refused(left: tuple[Drift, ...] | str, kind: Kind) -> Advice:
    """Says why a guard does not fix a program: what is left of its drift."""
    is_error = isinstance(left, str)
    return Advice(refusal=left if is_error else AuditReport(left, subject=kind).headline)


def check_x64(owner: str, x64: object) -> None:
    """Rejects an `x64` that is neither a bool nor None."""
    if not (x64 is None or isinstance(x64, bool)):
        raise TypeError(f"{owner} got x64={shown(x64)}. Write True, False or None.")
