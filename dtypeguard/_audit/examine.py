"""One audit of a program: what is found in it, and what fixes it."""

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Protocol

from .._carry.split import changed_constants
from .._leaves.arguments import shown
from .._leaves.compat import set_x64
from .._leaves.dtypes import bits, is_weak, is_wide
from .._leaves.leaf_type import type_text
from .._lines import drift
from .._lines.drift import Drift
from .._lines.monitored import RECORD
from .._lines.why import line_of
from .._program.trace import Program, TraceFailed
from .report import AuditReport, ChangedConstant, Kind, TraceError, WideOperation
from .trace_error import trace_error


@dataclasses.dataclass(frozen=True)
class TypeCheck:
    """What one trace shows of types: the leaves that drift, or why there is no program."""

    drifts: tuple[Drift, ...] = ()
    error: TraceError | None = None
    program: Program | None = None

    @property
    def is_clean(self) -> bool:
        """Whether the program traces and keeps its types."""
        return self.error is None and not self.drifts

    def explanation(self, kind: Kind) -> str:
        """Returns why the program does not keep its types."""
        if self.error is not None:
            return self.error.message
        return AuditReport(self.drifts, subject=kind).headline


@dataclasses.dataclass(frozen=True)
class Advice:
    """What fixes a program, or why a guard does not: fields of `AuditReport`."""

    remedy: str = ""
    refusal: str | None = None
    is_same_error: bool = False


class Subject(Protocol):
    """What can be audited: an optimizer, or a step with its arguments."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    def trace(self) -> Program: ...

    def advise(self, bare: TypeCheck) -> Advice: ...


def check_types(trace: Callable[[], Program]) -> TypeCheck:
    """Traces a program and compares the types of its carry before and after."""
    try:
        program = trace()
    except TraceFailed as failed:
        return TypeCheck(error=trace_error(failed))
    return TypeCheck(tuple(drift.find(program)), program=program)


def examine(subject: Subject, x64: bool | None, has_advice: bool = True) -> AuditReport:
    """Audits an optimizer or a step.

    Args:
        subject: the optimizer or the step.
        x64: whether `jax_enable_x64` is on; None for the caller's setting.
        has_advice: whether to try what fixes the subject. It takes a few traces more.
    """
    with set_x64(x64), RECORD, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the program warns when it runs
        found_types = check_types(subject.trace)
        report = _report(subject, found_types)
        if report.ok or not has_advice:
            return report
        advice = subject.advise(found_types)
        return dataclasses.replace(report, **vars(advice))


def _report(subject: Subject, checked: TypeCheck) -> AuditReport:
    """Returns the findings in a program, without advice."""
    program = checked.program
    if program is None:
        return AuditReport(error=checked.error, name=subject.name, subject=subject.kind)
    constants = tuple(_changed_constants(program))
    # `optax.apply_updates` casts wide updates: params keep their types.
    is_carry_stable = all(leaf.where == "updates" for leaf in checked.drifts)
    return AuditReport(
        drifts=checked.drifts,
        wide_operations=tuple(_wide_operations(program)),
        changed_constants=constants,
        compilations=1 if is_carry_stable and not constants else 2,
        name=subject.name,
        subject=subject.kind,
    )


def _wide_operations(program: Program) -> Iterator[WideOperation]:
    """Yields the operations in 64 bits, if neither an input nor a policy asks for them."""
    if program.asks_wide:
        return
    if any(is_wide(aval) and not is_weak(aval) for aval in program.given):
        return
    graphs = [program.step]
    # The caller's own first carry is no part of a step.
    if program.is_optimizer and program.first is not None:
        graphs.insert(0, program.first)
    for graph in graphs:
        for value, equation in graph.made_by.items():
            aval = graph.avals[value]
            if bits(getattr(aval, "dtype", None)) == 64:
                yield WideOperation(
                    primitive=equation.primitive,
                    type=type_text(aval),
                    is_array=aval.shape != (),
                    origin=line_of(equation),
                )


def _changed_constants(program: Program) -> Iterator[ChangedConstant]:
    """Yields the constants of the carry that change: a jitted step compiles anew."""
    for name, before, after in zip(program.names, program.carried, program.returned):
        for path, old, new in changed_constants(before, after):
            yield ChangedConstant(name + path, shown(old), shown(new))


def check_x64(owner: str, x64: object) -> None:
    """Rejects an `x64` that is neither a bool nor None."""
    if not (x64 is None or isinstance(x64, bool)):
        raise TypeError(f"{owner} got x64={shown(x64)}. Write True, False or None.")
