"""One audit of a program: what the analyses find, and what mends it."""

import contextlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from .._find import drift, wide
from .._find.drift import Drift
from .._leaves.arguments import shown
from .._leaves.compat import set_x64
from .._leaves.types import DType
from .._program.lines import Lines
from .._program.origins import Origin
from .._program.trace import Program, TraceFailed
from .._program.watch import Watch
from .report import AuditReport
from .trace_error import TraceError, reduce_error

# What of a report each analysis fills in.
_ANALYSES = {"drifts": drift.find, "wide_operations": wide.find}


Kind = Literal["optimizer", "step"]


class Advice(NamedTuple):
    """What mends a program: see `AuditReport`."""

    refusal: str | None = None
    remedy: str = ""


class Subject(Protocol):
    """What is audited."""

    name: str
    kind: Kind
    is_small: bool

    def trace(self, types: Mapping[str, DType] | None = None) -> Program:
        """Traces it; see `trace`."""
        ...

    def advice(self, drifts: tuple[Drift, ...], error: TraceError | None) -> Advice:
        """What mends it, tried out."""
        ...


def examine(
    subject: Subject, x64: bool | None, bound: Callable[[Any], Origin | None] | None = None
) -> AuditReport:
    """Audits an optimizer or a step.

    Args:
        subject: what is audited.
        x64: whether `jax_enable_x64` is on; None leaves it alone.
        bound: see `Lines`.
    """
    flag = contextlib.nullcontext() if x64 is None else set_x64(x64)
    with flag, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of, it says when it runs
        about: dict[str, Any] = {"name": subject.name, "subject": subject.kind}
        watch = Watch() if subject.is_small else None
        try:
            with watch or contextlib.nullcontext():
                program = subject.trace()
        except TraceFailed as failed:
            if failed.args == ("inputs",):
                raise
            error = reduce_error(failed.__cause__, *failed.args)
            return AuditReport(error=error, **about, **subject.advice((), error)._asdict())
        lines = Lines(program, watch, subject.trace, *([bound] if bound else []))
        found = {name: tuple(find(program, lines)) for name, find in _ANALYSES.items()}
        drifts = found["drifts"]
        advice = subject.advice(drifts, None) if drifts else Advice()
        carried = [each for each in drifts if each.where != "updates"]
        compilations = 2 if carried else 1
        return AuditReport(**found, compilations=compilations, **about, **advice._asdict())


def left(trace: Callable[[], Program]) -> tuple[Drift, ...] | str:
    """What drifts in a program; where it does not trace, why."""
    try:
        return tuple(drift.find(trace(), None))
    except TraceFailed as failed:
        return reduce_error(failed.__cause__, *failed.args).message


def check_x64(owner: str, x64: Any) -> None:
    """Refuses what is no flag."""
    if not (x64 is None or isinstance(x64, bool)):
        raise TypeError(f"{owner} got x64={shown(x64)}. Write True, False or None.")
