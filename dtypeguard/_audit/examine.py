"""One audit of a program: what is found in it, and what fixes it."""

import dataclasses
from collections.abc import Iterator

from .._blame import drift
from .._blame.why import line_of
from .._carry.split import constant_changes
from .._leaves.arguments import shown
from .._leaves.compat import set_x64
from .._leaves.dtypes import bits, dtype_of, has_64_bits, is_weak
from .._leaves.leaf_type import type_text
from .._leaves.quiet import warnings_ignored
from .._program.trace import Program, TraceFailed
from .._recording.monitored import RECORD
from .report import AuditReport, ChangedConstant, WideOperation
from .subjects import AuditSubject
from .trace_error import trace_error


def examine(
    subject: AuditSubject, x64: bool | None, has_advice: bool = True
) -> AuditReport:
    """Audits a subject.

    Args:
        subject: the optimizer or the step.
        x64: whether `jax_enable_x64` is on; None for the caller's setting.
        has_advice: whether to try what fixes the subject. That takes a few traces more.
    """
    # The record names lines of constants, of which an equation knows nothing.
    # The program warns when it runs.
    with set_x64(x64), RECORD, warnings_ignored():
        report = _report_without_advice(subject)
        if has_advice and not report.ok:
            return _with_advice(report, subject)
        return report


def _with_advice(report: AuditReport, subject: AuditSubject) -> AuditReport:
    """Returns a report with the first remedy that fixes its subject, or with a refusal."""
    for remedy in subject.remedies(report.drifts):
        if _report_without_advice(remedy.subject).ok:
            return dataclasses.replace(report, remedy=remedy.sentence)
    # The refusal is that of the guard alone, which users try first.
    guarded = _report_without_advice(subject.guarded())
    return dataclasses.replace(
        report,
        refusal=guarded.error.message if guarded.error else guarded.headline,
        is_same_error=guarded.error == report.error,
    )


def _report_without_advice(subject: AuditSubject) -> AuditReport:
    """Returns a report of one trace of a subject, for which no remedy is tried."""
    empty = AuditReport(name=subject.name, subject=subject.kind)
    try:
        program = subject.trace()
    except TraceFailed as failed:
        return dataclasses.replace(empty, error=trace_error(failed))
    drifts = tuple(drift.find(program))
    constants = tuple(_constants_that_change(program))
    # `optax.apply_updates` casts wide updates: params keep their types.
    changes_carry = any(leaf.where != "updates" for leaf in drifts)
    return dataclasses.replace(
        empty,
        drifts=drifts,
        wide_operations=tuple(_wide_operations(program)),
        changed_constants=constants,
        compilations=2 if changes_carry or constants else 1,
    )


def _wide_operations(program: Program) -> Iterator[WideOperation]:
    """Yields the operations in 64 bits, if neither an input nor a policy asks for them."""
    if program.asks_float64:
        return
    for aval in program.caller_inputs:
        if has_64_bits(aval) and not is_weak(aval):
            return
    graphs = [program.step]
    # The caller's own first carry is no part of a step.
    if program.is_optimizer and program.first is not None:
        graphs.insert(0, program.first)
    for graph in graphs:
        for value, node in graph.made_by.items():
            aval = graph.avals[value]
            if bits(dtype_of(aval)) != 64:
                continue
            yield WideOperation(
                primitive=node.name,
                type=type_text(aval),
                is_array=aval.shape != (),
                origin=line_of(node),
            )


def _constants_that_change(program: Program) -> Iterator[ChangedConstant]:
    """Yields the constants of the carry that change: a jitted step compiles anew."""
    for name, before, after in zip(program.names, program.carried, program.returned):
        for path, old, new in constant_changes(before, after):
            yield ChangedConstant(name + path, shown(old), shown(new))


def check_x64(owner: str, x64: object) -> None:
    """Rejects an `x64` that is neither a bool nor None."""
    if x64 is not None and not isinstance(x64, bool):
        raise TypeError(f"{owner} got x64={shown(x64)}. Write True, False or None.")
