"""Audits the optimizer or the step that a command line names."""

import argparse
import dataclasses
import inspect
import shlex
from typing import Any, TextIO

from .._audit.audit import audit
from .._audit.examine import examine
from .._audit.report import AuditReport
from .._audit.subjects import StepCall
from .._leaves.arguments import is_transformation, parameters
from .._leaves.compat import add_x64
from .._leaves.types import Optimizer
from .._recording.monitored import RECORD
from .._sweep.inputs import Entry
from .forms import CommandResult, deliver
from .options import UsageError, parse, right
from .targets import FORM, Reader, as_usage_error

# An optimizer that does not keep its types shows that with one of these.
_TELLING_OPTIONS = (
    "--params float32",
    "--params bfloat16,float32",
    "--params bfloat16 --grads float32",
    "--params float32 --x64",
)
_OF_OPTIMIZER = ("set", "params", "grads")
_OF_STEP = ("carry", "returned")


def audit_command(options: argparse.Namespace, stdout: TextIO) -> int:
    """Audits what is named, shows the report and writes it."""
    is_step = options.inputs is not None
    # An option that would do nothing hides a mistake: `--inputs` was meant, or forgotten.
    other_options = _OF_OPTIMIZER if is_step else _OF_STEP
    for name in other_options:
        if vars(options)[name]:
            kind = "an optimizer, without --inputs" if is_step else "a step, with --inputs"
            raise UsageError(f"--{name} is for {kind}")
    with RECORD:
        report = _audit_step_of(options) if is_step else _audit_optimizer_of(options)
    result = CommandResult(str(report), report, report.to_json(), report.ok)
    return deliver(result, options, stdout)


# An optimizer ----------------------------------------------------------------------------


def _audit_optimizer_of(options: argparse.Namespace) -> AuditReport:
    """Returns the audit in the types asked for, or the first of several that tells."""
    reader = Reader(options)
    if options.params or options.grads:
        return _audit_optimizer_in(reader, options)
    reports = []
    for words in _TELLING_OPTIONS:
        telling = parse(["audit", options.target, *words.split()])
        telling.set = options.set
        telling.x64 = telling.x64 or options.x64
        report = _audit_optimizer_in(reader, telling)
        # In types that nobody asked for, an update may be as wide as its gradient.
        if any(drift.where != "updates" for drift in report.drifts):
            return dataclasses.replace(report, note=f"Found with {words}.")
        reports.append(report)
    return dataclasses.replace(reports[0], note=f"Tried {', '.join(_TELLING_OPTIONS)}.")


def _audit_optimizer_in(reader: Reader, options: argparse.Namespace) -> AuditReport:
    """Returns the audit in some types, with the optimizer made under their flag."""
    params_dtypes = options.params or ("float32",)
    grads_dtypes = options.grads or params_dtypes
    wide_dtypes = {"float64", "complex128"}.intersection(params_dtypes + grads_dtypes)
    with add_x64(options.x64 or bool(wide_dtypes)):
        # An optimizer is made under the flag: `init` alone would not show what it stores.
        opt = reader.target()
        name = options.target.rpartition(":")[2]
        if not is_transformation(opt) or inspect.isclass(opt):
            opt = _optimizer_of(options.target, opt, dict(options.set))
            name = f"{name}(...)"
        elif options.set:
            raise UsageError(f"{options.target} is an optimizer and takes no --set")
        # It knows which extra args an update needs.
        entry = Entry(options.target, lambda: opt)
        params, updates, extra_args = entry.inputs(params_dtypes, grads_dtypes)
        report = audit(opt, params, updates=updates, extra_args=extra_args)
    return dataclasses.replace(report, name=name)


def _optimizer_of(target: str, factory: Any, settings: dict[str, object]) -> Optimizer:
    """Returns the optimizer that a function makes with `--set`."""
    inputs = shlex.quote(f"{target.rpartition(':')[0]}:inputs")
    advice = (
        f"It takes {', '.join(parameters(factory))}: write --set NAME=VALUE, or audit "
        "FILE.py:NAME where a VALUE is not a literal",
        f"If it is a step: dtypeguard audit {shlex.quote(target)} --inputs {inputs}",
    )
    # A step needs arguments, and nothing runs without them.
    with as_usage_error(f"{target} cannot be called", *advice):
        opt = factory(**settings)
    # A number or a module is most often a name that is written wrongly.
    if not is_transformation(opt):
        raise UsageError(
            f"{target} gives {opt!r}, which is not an optimizer. {right('audit')}"
        )
    return opt


# A step ----------------------------------------------------------------------------------


def _audit_step_of(options: argparse.Namespace) -> AuditReport:
    """Returns the audit of a step on what `--inputs` names."""
    with add_x64(options.x64):
        call = Reader(options).call()
        step_call = StepCall(
            call.function, call.args, call.kwargs, options.carry, options.returned
        )
        try:
            if not any(tree.arrays for tree in step_call.call().carried):
                raise ValueError(
                    f"{call.target} carries no array: nothing would be checked."
                )
            report = examine(step_call, x64=None)
        except (TypeError, ValueError) as error:
            # The library speaks of its arguments.
            raise UsageError(
                str(error),
                "Here these are --carry and --returned, such as --carry params,state. "
                "An optimizer is audited without --inputs: dtypeguard audit "
                f"{shlex.quote(call.target)}",
            ) from error
    # A wrapper may add arguments: only a call that failed tells that they do not fit.
    misfit = call.misfit()
    if misfit and report.error and report.error.is_of_call:
        raise UsageError(
            f"{call.inputs} does not give what {call.target} takes: {misfit}. {FORM}"
        )
    return dataclasses.replace(report, name=call.target.rpartition(":")[2])
