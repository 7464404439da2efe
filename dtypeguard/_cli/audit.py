"""Audits the optimizer or the step that a command line names."""

import argparse
import dataclasses
import functools
import inspect
from collections.abc import Sequence
from typing import Any, TextIO

from .._audit.audit import audit
from .._audit.report import AuditReport
from .._carry.call import Call
from .._carry.carry import carry_of
from .._leaves.arguments import is_transformation, parameters, required
from .._leaves.compat import add_x64, x64_enabled
from .._leaves.types import DType, Optimizer
from .._lines.monitored import RECORD
from .._sweep.inputs import Entry
from .forms import check_files, deliver
from .options import UsageError, right
from .targets import FORM, Reader, as_usage_error

DTypes = tuple[DType, ...]
# Dtypes of params and gradients, as options have them, and whether --x64 is among them.
_Inputs = tuple[DTypes, DTypes | None, bool]
# With these an optimizer shows that it does not keep its types.
_TELLING: Sequence[_Inputs] = (
    (("float32",), None, False),
    (("bfloat16", "float32"), None, False),
    (("bfloat16",), ("float32",), False),
    (("float32",), None, True),
)
_OF_A_STEP = "Here these are --carry and --returned, such as --carry params,opt_state."


def run(options: argparse.Namespace, stdout: TextIO) -> int:
    """Audits what is named, shows the report and writes it."""
    check_files(options)
    is_step, as_step = options.inputs is not None, f"Write: {_as_step(options.target)}"
    others = ("set", "params", "grads") if is_step else ("carry", "returned")
    if given := [x for x in others if vars(options)[x] not in (None, [], 0)]:
        what = "an optimizer" if is_step else "a step"
        raise UsageError(f"--{given[0]} is for {what}. {as_step}")
    with RECORD:
        report = (_audit_step if is_step else _audit_optimizer)(options)
    return deliver(options, stdout, report, report.ok, "green")


def _as_step(target: str) -> str:
    file = target.rpartition(":")[0]
    return f"dtypeguard audit {target} --inputs {file or 'FILE.py'}:inputs"


def _audit_optimizer(options: argparse.Namespace) -> AuditReport:
    """The audit on small params; if nobody chose types, the first that finds something."""
    reader, first, report = Reader(options), None, None
    if options.params or options.grads:
        asked = options.params or ("float32",), options.grads, options.x64
        return _audited(reader, options, asked)
    choices = dict.fromkeys((p, g, x64 or options.x64) for p, g, x64 in _TELLING)
    said = f"Tried {', '.join(map(_as_options, choices))}."
    for choice in choices:
        report = _audited(reader, options, choice)
        # In types that nobody asked for, an update may be as wide as its gradient.
        if first and all(drift.where == "updates" for drift in report.drifts):
            report = first
        first = first or report
        if not report.ok:
            said = f"Found with {_as_options(choice)}."
            break
    assert report is not None
    return dataclasses.replace(report, note=said)


def _as_options(inputs: _Inputs) -> str:
    params, grads, x64 = inputs
    of_grads = f" --grads {','.join(grads)}" if grads else ""
    return f"--params {','.join(params)}{of_grads}{' --x64' * x64}"


def _audited(reader: Reader, options: argparse.Namespace, inputs: _Inputs) -> AuditReport:
    """The audit in types and under a flag, under which the optimizer is made."""
    params, grads, x64 = inputs
    with add_x64(x64):
        wide = {"float64", "complex128"}.intersection({*params, *(grads or ())})
        if wide and not x64_enabled():
            raise UsageError(f"{min(wide)} needs --x64 as well")
        target, made = options.target, reader.target()
        make, name = lambda: made, target.rpartition(":")[2]
        if not is_transformation(made) or inspect.isclass(made):
            make = functools.partial(_call, target, made, dict(options.set))
            name += "(...)"
        elif options.set:
            raise UsageError(f"{target} is an optimizer already and takes no --set")
        opt = make()
        arrays, updates, extra_args = Entry(target, make).inputs(params, grads or params)
        report = audit(opt, arrays, updates=updates, extra_args=extra_args)
    return dataclasses.replace(report, name=name)


def _call(target: str, factory: Any, settings: dict[str, object]) -> Optimizer:
    """The optimizer that a function makes."""
    if not callable(factory):
        raise UsageError(
            f"{target} is {factory!r}: neither an optimizer nor a function that makes one. "
            + right("audit")
        )
    taken = [*parameters(factory)]
    missing = [name for name in required(factory) if name not in settings]
    names = missing or [name for name in settings if name in taken] or taken[:1]
    write = f"dtypeguard audit {target} " + " ".join(f"--set {x}=VALUE" for x in names)
    if missing and not settings:  # nothing is called to find out what it is
        raise UsageError(
            f"{target} needs {', '.join(missing)}. If it is a step: {_as_step(target)}. If "
            f"it makes an optimizer: {write}, or audit FILE.py:NAME where a VALUE is not a "
            "literal"
        )
    advice = f"It takes {', '.join(taken)}. Write: {write}" if taken else ""
    with as_usage_error(f"{target} cannot be called", advice):
        made = factory(**settings)
    if not is_transformation(made):
        raise UsageError(
            f"{target} returned {made!r}, which is not an optimizer. {right('audit')}"
        )
    return made


def _audit_step(options: argparse.Namespace) -> AuditReport:
    """The audit of a step on what `--inputs` names."""
    with add_x64(options.x64):
        call = Reader(options).call()
        target, inputs, step, args, kwargs = call
        try:
            carry = carry_of("audit", step, options.carry, options.returned)
            carried = Call(step, carry, args, kwargs)
            if not any(tree.arrays for tree in carried.carried):
                raise ValueError(
                    f"{target} carries {', '.join(carried.names)}, in which there is no "
                    "array: nothing would be checked."
                )
            report = audit(
                step, *args, carry=options.carry, returned=options.returned, kwargs=kwargs
            )
        except (TypeError, ValueError) as error:
            raise UsageError(str(error), _OF_A_STEP) from error
    if report.error and report.error.is_of_call and (wrong := call.misfit()):
        raise UsageError(f"{inputs} does not give what {target} takes: {wrong}. {FORM}")
    return dataclasses.replace(report, name=target.rpartition(":")[2])
