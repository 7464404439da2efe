"""One audit of a program: what is found in it, and what fixes it."""

import contextlib
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from .._leaves.arguments import shown
from .._leaves.compat import set_x64
from .._lines import drift
from .._lines.drift import Drift
from .._lines.monitored import RECORD
from .._lines.why import ProgramLines
from .._program.trace import Program, TraceFailed
from . import findings
from .report import AuditReport, Kind
from .trace_error import reduce_error


class Advice(NamedTuple):
    """What fixes a program: see `AuditReport`. Every remedy has been tried."""

    refusal: str | None = None
    remedy: str = ""


def examine(subject: Any, x64: bool | None) -> AuditReport:
    """Audits an optimizer or a step, with `jax_enable_x64` as it is if `x64` is None.

    The subject has a `name`, a `kind`, `trace()` and `advice(drifts, error)`.
    """
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
            advice = subject.advice((), error)
            return AuditReport(error=error, **about, **advice._asdict())
        lines = ProgramLines(program)
        drifts = tuple(drift.find(program, lines))
        wide = tuple(findings.wide_operations(program))
        constants = tuple(findings.constants(program))
        advice = subject.advice(drifts, None) if drifts else Advice()
        is_stable = not constants and all(each.where == "updates" for each in drifts)
        return AuditReport(
            drifts,
            wide,
            constants,
            (findings.wide_summary(wide), findings.constants_summary(constants)),
            compilations=1 if is_stable else 2,
            **about,
            **advice._asdict(),
        )


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
