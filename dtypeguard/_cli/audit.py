"""Audits the optimizer or the step that a command line names."""

import argparse
import contextlib
import dataclasses
import inspect
import shlex
from collections.abc import Iterator
from typing import Any, TextIO

from .._audit.audit import audit
from .._audit.report import AuditReport
from .._carry.call import Call
from .._carry.carry import carry_of
from .._leaves.arguments import is_transformation, parameters, required
from .._leaves.compat import add_x64, x64_enabled
from .._leaves.types import DType, Optimizer
from .._recording.monitored import RECORD
from .._sweep.inputs import Entry
from .forms import CommandResult, check_files, deliver
from .options import UsageError, right
from .targets import FORM, Reader, as_usage_error


@dataclasses.dataclass(frozen=True)
class _AuditedTypes:
    """The types that an optimizer is audited in, and whether x64 is on."""

    params: tuple[DType, ...] = ("float32",)
    grads: tuple[DType, ...] | None = None
    x64: bool = False

    def __str__(self) -> str:
        text = f"--params {','.join(self.params)}"
        if self.grads:
            text += f" --grads {','.join(self.grads)}"
        return f"{text} --x64" if self.x64 else text


# An optimizer that does not keep its types shows that with one of these.
_TELLING_TYPES = (
    _AuditedTypes(),
    _AuditedTypes(params=("bfloat16", "float32")),
    _AuditedTypes(params=("bfloat16",), grads=("float32",)),
    _AuditedTypes(x64=True),
)
_OF_OPTIMIZER = ("set", "params", "grads")
_OF_STEP = ("carry", "returned")
# The defaults of these options: 0 is that of `--carry`.
_NOT_GIVEN = (None, [], 0)
_CARRY_ADVICE = "Here these are --carry and --returned, such as --carry params,opt_state."


def audit_command(options: argparse.Namespace, stdout: TextIO) -> int:
    """Audits what is named, shows the report and writes it."""
    check_files(options.json)
    is_step = options.inputs is not None
    # An option that would do nothing hides a mistake: `--inputs` was meant, or forgotten.
    other_options = _OF_OPTIMIZER if is_step else _OF_STEP
    for name in other_options:
        if vars(options)[name] not in _NOT_GIVEN:
            kind = "an optimizer, without --inputs" if is_step else "a step"
            command = _command_for_step(options.target)
            raise UsageError(f"--{name} is for {kind}. For a step write: {command}")
    with RECORD:
        report = _audit_step_of(options) if is_step else _audit_optimizer_of(options)
    result = CommandResult(str(report), report, report.to_json(), report.ok, "green")
    return deliver(result, options, stdout)


def _command_for_step(target: str) -> str:
    file = target.rpartition(":")[0] or "FILE.py"
    inputs = shlex.quote(f"{file}:inputs")
    return f"dtypeguard audit {shlex.quote(target)} --inputs {inputs}"


# An optimizer ----------------------------------------------------------------------------


def _audit_optimizer_of(options: argparse.Namespace) -> AuditReport:
    """Returns the audit in the types asked for, or the first of several that tells."""
    reader = Reader(options)
    if options.params or options.grads:
        types = _AuditedTypes(options.params or ("float32",), options.grads, options.x64)
        return _audit_optimizer_in(reader, options, types)
    reports: dict[_AuditedTypes, AuditReport] = {}
    for types in _TELLING_TYPES:
        types = dataclasses.replace(types, x64=types.x64 or options.x64)
        if types in reports:  # with --x64 two of them are the same
            continue
        report = _audit_optimizer_in(reader, options, types)
        # In types that nobody asked for, an update may be as wide as its gradient.
        is_telling = any(drift.where != "updates" for drift in report.drifts)
        if not report.ok and (is_telling or not reports):
            return dataclasses.replace(report, note=f"Found with {types}.")
        reports[types] = report
    tried = ", ".join(map(str, reports))
    first_report, *_ = reports.values()
    return dataclasses.replace(first_report, note=f"Tried {tried}.")


def _audit_optimizer_in(
    reader: Reader, options: argparse.Namespace, types: _AuditedTypes
) -> AuditReport:
    """Returns the audit in some types, with the optimizer made under their flag."""
    grads = types.grads or types.params
    with add_x64(types.x64):
        needs_x64 = {"float64", "complex128"}.intersection(types.params + grads)
        if needs_x64 and not x64_enabled():
            raise UsageError(f"{min(needs_x64)} needs --x64 as well")
        target = options.target
        # An optimizer is made under the flag: `init` alone would not show what it stores.
        value = reader.target()
        is_optimizer = is_transformation(value) and not inspect.isclass(value)
        if is_optimizer and options.set:
            raise UsageError(f"{target} is an optimizer already and takes no --set")

        def make() -> Optimizer:
            if is_optimizer:
                return value
            return _optimizer_of(target, value, dict(options.set))

        opt = make()
        arrays, updates, extra_args = Entry(target, make).inputs(types.params, grads)
        report = audit(opt, arrays, updates=updates, extra_args=extra_args)
    name = target.rpartition(":")[2]
    return dataclasses.replace(report, name=name if is_optimizer else f"{name}(...)")


def _optimizer_of(target: str, factory: Any, settings: dict[str, object]) -> Optimizer:
    """Returns the optimizer that a function makes with `--set`."""
    # A number or a module is most often a name that is written wrongly.
    if not callable(factory):
        raise UsageError(
            f"{target} is {factory!r}: neither an optimizer nor a function that makes one. "
            + right("audit")
        )
    missing = [name for name in required(factory) if name not in settings]
    # Nothing is called to find out what it is: it may be a step that trains.
    if missing and not settings:
        values = " ".join(f"--set {name}=VALUE" for name in missing)
        raise UsageError(
            f"{target} needs {', '.join(missing)}. If it is a step: "
            f"{_command_for_step(target)}. If it makes an optimizer: dtypeguard audit "
            f"{shlex.quote(target)} {values}, or audit FILE.py:NAME where a VALUE is not a "
            "literal"
        )
    advice = f"It takes {', '.join(parameters(factory))}."
    with as_usage_error(f"{target} cannot be called", advice):
        opt = factory(**settings)
    if not is_transformation(opt):
        raise UsageError(
            f"{target} returned {opt!r}, which is not an optimizer. {right('audit')}"
        )
    return opt


# A step ----------------------------------------------------------------------------------


def _audit_step_of(options: argparse.Namespace) -> AuditReport:
    """Returns the audit of a step on what `--inputs` names."""
    with add_x64(options.x64):
        reader = Reader(options)
        if is_transformation(reader.target()):
            target = shlex.quote(options.target)
            raise UsageError(
                f"{options.target} is an optimizer, which is audited without --inputs. "
                f"Write: dtypeguard audit {target}"
            )
        call = reader.call()
        with _as_carry_error():
            carry = carry_of("audit", call.function, options.carry, options.returned)
            carried = Call(call.function, carry, call.args, call.kwargs)
            if not any(tree.arrays for tree in carried.carried):
                raise ValueError(
                    f"{call.target} carries {', '.join(carried.names)}, in which there is "
                    "no array: nothing would be checked."
                )
            report = audit(
                call.function,
                *call.args,
                carry=options.carry,
                returned=options.returned,
                kwargs=call.kwargs,
            )
    # A wrapper may add arguments: only a call that failed tells that they do not fit.
    if report.error and report.error.is_of_call:
        misfit = call.misfit()
        if misfit:
            what = f"{call.inputs} does not give what {call.target} takes: {misfit}"
            raise UsageError(f"{what}. {FORM}")
    return dataclasses.replace(report, name=call.target.rpartition(":")[2])


@contextlib.contextmanager
def _as_carry_error() -> Iterator[None]:
    """Names the options in place of the arguments of which the library speaks."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise UsageError(str(error), _CARRY_ADVICE) from error
