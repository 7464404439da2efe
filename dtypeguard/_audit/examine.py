"""One audit of a program: what is found in it, and what fixes it."""

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from .._carry.split import changed_constants
from .._leaves.arguments import shown
from .._leaves.compat import set_x64
from .._leaves.dtypes import bits, is_weak, is_wide
from .._leaves.errors import DtypeDriftError
from .._leaves.leaf_type import type_text
from .._lines import drift
from .._lines.drift import Drift
from .._lines.monitored import RECORD
from .._lines.why import line_of
from .._program.trace import Program, TraceFailed
from .._source.origin import origin_of_error
from .report import AuditReport, ChangedConstant, Kind, TraceError, WideOperation

# What fixes a program: fields of `AuditReport`. Every remedy has been tried.
Advice = dict[str, Any]


def examine(subject: Any, x64: bool | None) -> AuditReport:
    """Audits an optimizer or a step, with `jax_enable_x64` as it is if `x64` is None.

    The subject has a `name`, a `kind`, `trace()` and `advice(drifts, error)`.
    """
    with set_x64(x64), RECORD, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the program warns when it runs
        about: dict[str, Any] = {"name": subject.name, "subject": subject.kind}
        try:
            program = subject.trace()
        except TraceFailed as failed:
            error = reduce_error(failed)
            return AuditReport(error=error, **about, **subject.advice((), error))
        drifts = tuple(drift.find(program))
        constants = tuple(_changed_constants(program))
        advice = subject.advice(drifts, None) if drifts else {}
        is_stable = not constants and all(each.where == "updates" for each in drifts)
        return AuditReport(
            drifts,
            tuple(_wide_operations(program)),
            constants,
            compilations=1 if is_stable else 2,
            **about,
            **advice,
        )


def _wide_operations(program: Program) -> Iterator[WideOperation]:
    """Yields the operations in 64 bits, if neither an input nor a policy asks for them."""
    is_input = lambda aval: is_wide(aval) and not is_weak(aval)
    if program.asks_wide or any(map(is_input, program.given)):
        return
    graphs = [program.first, program.step] if program.is_optimizer else [program.step]
    for graph in filter(None, graphs):
        for value, equation in graph.made_by.items():
            aval = graph.avals[value]
            if bits(getattr(aval, "dtype", None)) == 64:
                line, is_array = line_of(equation), aval.shape != ()
                yield WideOperation(equation.primitive, type_text(aval), is_array, line)


def _changed_constants(program: Program) -> Iterator[ChangedConstant]:
    """Yields the constants of the carry that change: a jitted step compiles anew."""
    for name, before, after in zip(program.names, program.carried, program.returned):
        for path, old, new in changed_constants(before, after):
            yield ChangedConstant(name + path, shown(old), shown(new))


def left(trace: Callable[[], Program]) -> tuple[Drift, ...] | str:
    """The leaves that drift in a program, or why it does not trace."""
    try:
        return tuple(drift.find(trace()))
    except TraceFailed as failed:
        return reduce_error(failed).message


def refused(left: tuple[Drift, ...] | str, kind: Kind) -> Advice:
    """Says why a guard does not fix a program: what is left of its drift."""
    is_error = isinstance(left, str)
    return {"refusal": left if is_error else AuditReport(left, subject=kind).headline}


def check_x64(owner: str, x64: object) -> None:
    """Rejects an `x64` that is neither a bool nor None."""
    if not (x64 is None or isinstance(x64, bool)):
        raise TypeError(f"{owner} got x64={shown(x64)}. Write True, False or None.")


# How JAX names two types: for loops and branches, and for operations.
_TYPE = r"(?:ShapedArray\()?((?:[a-z_]+\d*\w*)?(?:\[[\w,]*\]|\([\d, ]*\))?)"
_PAIRS = tuple(
    re.compile(pattern.replace("TYPE", _TYPE), re.DOTALL)
    for pattern in (
        "has type TYPE.{1,80}? has type TYPE",
        "(?:got|broadcasting:) TYPE, TYPE",
    )
)


def reduce_error(failed: TraceFailed) -> TraceError:
    """The part of an error that is worth a report."""
    error = failed.__cause__ or failed
    message = str(error).strip()
    found = filter(None, (pair.search(message) for pair in _PAIRS))
    types = next((match.groups() for match in found), ())
    if not isinstance(error, DtypeDriftError):
        message = message.partition("\n")[0]
    message = f"{type(error).__name__}: {message}"
    return TraceError(failed.args[0], message, types, origin_of_error(error))
