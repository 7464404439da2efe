"""One audit of a program: what is found in it, and what fixes it."""

import contextlib
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .._carry.split import changed_constants
from .._guard import guard
from .._leaves.arguments import shown
from .._leaves.compat import set_x64
from .._leaves.dtypes import bits, is_python_number, is_weak, is_wide
from .._leaves.errors import DtypeDriftError
from .._leaves.rows import type_text
from .._leaves.types import Aval
from .._lines import drift
from .._lines.drift import Drift
from .._lines.monitored import RECORD
from .._lines.why import ProgramLines, line_of
from .._program.graph import Equation
from .._program.trace import Program, TraceFailed
from .._source.origin import origin_of_error
from .report import (
    AuditReport,
    ChangedConstant,
    Kind,
    TraceError,
    WideOperation,
    constants_summary,
    wide_summary,
)


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
            error = reduce_error(failed.__cause__, *failed.args)
            advice = subject.advice((), error)
            return AuditReport(error=error, **about, **advice._asdict())
        lines = ProgramLines(program)
        drifts = tuple(drift.find(program, lines))
        wide = tuple(_wide_operations(program))
        constants = tuple(_changed_constants(program))
        advice = subject.advice(drifts, None) if drifts else Advice()
        is_stable = not constants and all(each.where == "updates" for each in drifts)
        return AuditReport(
            drifts,
            wide,
            constants,
            (wide_summary(wide), constants_summary(constants)),
            compilations=1 if is_stable else 2,
            **about,
            **advice._asdict(),
        )


def _wide_operations(program: Program) -> Iterator[WideOperation]:
    """Yields the operations in 64 bits, if neither an input nor a policy asks for them."""
    is_input = lambda aval: is_wide(aval) and not is_weak(aval)
    if program.asks_wide or any(map(is_input, program.given)):
        return
    for aval, equation in _wide(program):
        is_array, line = aval.shape != (), line_of(equation)
        yield WideOperation(equation.primitive, type_text(aval), is_array, line)


def _wide(program: Program) -> Iterator[tuple[Aval, Equation]]:
    graphs = [program.first, program.step] if program.is_optimizer else [program.step]
    for graph in filter(None, graphs):
        for value, equation in graph.made_by.items():
            aval = graph.avals[value]
            if bits(getattr(aval, "dtype", None)) == 64:
                yield aval, equation


def _changed_constants(program: Program) -> Iterator[ChangedConstant]:
    """Yields the constants of the carry that change: a jitted step compiles anew."""
    for name, before, after in zip(program.names, program.carried, program.returned):
        for path, old, new in changed_constants(before, after):
            is_number = is_python_number(old) and type(old) is not bool
            yield ChangedConstant(name + path, shown(old), shown(new), is_number)


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


_GUARD = guard.__file__
# How JAX names two types: for loops and branches, for older ones, for operations.
_TYPE = r"(?:ShapedArray\()?((?:[a-z_]+\d*\w*)?(?:\[[\w,]*\]|\([\d, ]*\))?)"
_PAIRS = tuple(
    re.compile(pattern.replace("TYPE", _TYPE), re.DOTALL)
    for pattern in (
        r"has type TYPE.{1,80}? has type TYPE",
        r"DIFFERENT TYPE.{1,20}? vs\. TYPE",
        r"dtypes \('TYPE', '(?!')TYPE'\)",
        r"(?:got|broadcasting:) TYPE, TYPE",
    )
)


def reduce_error(error: BaseException | None, function: str) -> TraceError:
    """The part of an error that is worth a report."""
    message = str(error).strip()
    found = filter(None, (pair.search(message) for pair in _PAIRS))
    types = next((match.groups() for match in found), ())
    if not isinstance(error, DtypeDriftError):
        message = message.partition("\n")[0]
    first = f"{type(error).__name__}: {message}"
    origin = None if error is None else origin_of_error(error)
    frames = traceback.walk_tb(error and error.__traceback__)
    is_guarded = any(frame.f_code.co_filename == _GUARD for frame, _ in frames)
    are_floats = bool(types) and all(map(re.compile(r"b?float\d").match, types))
    is_inside = origin is not None and origin.is_of_optimizer
    is_of_optimizer = is_inside and are_floats and not is_guarded
    return TraceError(function, first, types, origin, is_of_optimizer)
