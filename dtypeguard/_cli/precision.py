"""Measures the precision of a function of a command line; searches or checks a plan."""

import argparse
import math
from typing import TextIO

import numpy as np

from .._autocast.plan import PlanError
from .._leaves.compat import add_x64
from .._leaves.types import PyTree
from .._precision.audit import audit_call
from .._precision.curve import check_call, plan_call
from .._precision.planned import PlannedInputs
from .._precision.prepared import Show, status
from .._precision.rows import plain
from .._recording.monitored import RECORD
from .forms import CommandResult, as_json, deliver
from .options import UsageError
from .targets import NamedCall, Reader, as_usage_error


def precision_command(options: argparse.Namespace, stdout: TextIO) -> int:
    """Measures a function, searches a plan or checks one; shows what is found."""
    if options.out and options.narrow is None:
        # Which dtype is meant cannot be guessed: it may be float16 or a float8.
        raise UsageError("a search needs --narrow. Write for example: --narrow bfloat16")
    if options.check and options.narrow is not None:
        raise UsageError(
            f"--narrow is for a search: {options.check} says what is narrow. Leave it out"
        )
    with RECORD, status() as show, add_x64(options.x64):
        reader = Reader(options)
        call = reader.call()
        # A search does not see these.
        held_out = [reader.call(name) for name in options.held_out]
        inputs = PlannedInputs(held_out=[(x.args, x.kwargs) for x in held_out])
        if options.check or options.out:
            result = _plan(options, call, inputs, show)
        else:
            reference = _reference(options.reference, reader)
            result = _measure(options, call, inputs, reference, show)
    return deliver(result, options, stdout)


def _measure(
    options: argparse.Namespace,
    call: NamedCall,
    inputs: PlannedInputs,
    reference: PyTree,
    show: Show,
) -> CommandResult:
    """Returns the audit of a call."""
    with call.running():
        report = audit_call(
            call.function,
            call.args,
            call.kwargs,
            wide=options.wide,
            narrow=options.narrow,
            tolerance=options.tolerance,
            matmul_precision=options.matmul_precision,
            reference=reference,
            show=show,
            inputs=inputs,
            seconds=options.seconds,
        )
    if options.max_error is not None and math.isnan(report.error):
        raise UsageError(
            f"--max-error needs values, and {options.inputs} gives a jax.ShapeDtypeStruct. "
            "Let it give arrays, or leave out --max-error"
        )
    faults = [
        # NaN is no error that was measured, but that of shapes without values.
        math.isinf(report.error),
        options.max_error is not None and report.error > options.max_error,
        any(difference.verdict == "differs" for difference in report.differences),
        bool(report.integers),
        # The error is known, but whoever presses Ctrl-C does not want a green check.
        report.unreached is not None and report.unreached.is_interrupted,
    ]
    return CommandResult(str(report), report, report.to_json(), not any(faults))


def _plan(
    options: argparse.Namespace, call: NamedCall, inputs: PlannedInputs, show: Show
) -> CommandResult:
    """Searches and writes a plan, or measures the plan of a file."""
    run = check_call if options.check else plan_call
    # A plan says itself what is narrow by it.
    subject = options.check or options.narrow
    with call.running(PlanError):
        search = run(
            call.function,
            call.args,
            call.kwargs,
            subject,
            options.tolerance,
            inputs,
            show,
        )
    text = str(search)
    is_ok = search.is_within
    if options.out:
        # Saved although it is of no use: the user may look at it, and the status tells.
        search.plan.save(options.out)
        text += f"\n{options.out} is written."
        is_ok = search.is_of_use
    data = plain(search) | {"ok": is_ok}
    return CommandResult(text, search, as_json(data), is_ok)


def _reference(name: str | None, reader: Reader) -> PyTree:
    """Returns the arrays of a file by path, or what a module has under a name."""
    if name is None:
        return None
    if not name.endswith(".npz"):
        return reader.load(name, "Write for example: --reference FILE.py:f")
    advice = (
        "Write the file with numpy.savez, with the path of each output as its key: "
        "numpy.savez(file, **{\"['logits']\": array}), or out=array for the only one"
    )
    with (
        as_usage_error(f"{name} cannot be read", advice),
        np.load(name) as file,
    ):
        return dict(file)
