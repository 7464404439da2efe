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
from .._precision.plan_search import PlanSearch
from .._precision.planned import PlannedInputs
from .._precision.prepared import Show, status
from .._precision.report import PrecisionReport
from .._precision.rows import plain
from .._recording.monitored import RECORD
from .forms import CommandResult, as_json, check_files, deliver
from .options import UsageError
from .targets import NamedCall, Reader

SILENCE = 10.0  # seconds, after which a pipe is told what a command is at


def precision_command(options: argparse.Namespace, stdout: TextIO) -> int:
    """Measures a function, searches a plan or checks one; shows what is found."""
    if options.out and options.narrow is None:
        # Which dtype is meant cannot be guessed: it may be float16 or a float8.
        raise UsageError("a search needs --narrow. Write for example: --narrow bfloat16")
    if options.check and options.narrow is not None:
        raise UsageError(
            f"--narrow is for a search: {options.check} says what is narrow. Leave it out"
        )
    check_files(options.json, options.out)
    with RECORD, status(every=SILENCE) as show, add_x64(options.x64):
        reader = Reader(options)
        call = reader.call()
        # A search does not see these.
        held_out = [reader.call(name) for name in options.held_out]
        inputs = PlannedInputs(held_out=[(x.args, x.kwargs) for x in held_out])
        if options.check:
            result = _measure_plan(options, call, inputs, show)
        elif options.out:
            result = _search_plan(options, call, inputs, show)
        else:
            reference = _reference(options.reference, reader, call)
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
            show_status=show,
            inputs=inputs,
            seconds=options.seconds,
        )
    if options.max_error is not None and math.isnan(report.error):
        raise UsageError(
            f"--max-error needs values, and {options.inputs} gives a jax.ShapeDtypeStruct. "
            "Let it give arrays, or leave out --max-error"
        )
    # NaN is no error that was measured, but that of shapes without values.
    is_ok = not math.isinf(report.error)
    if options.max_error is not None and report.error > options.max_error:
        is_ok = False
    if any(difference.verdict == "differs" for difference in report.differences):
        is_ok = False
    if report.integers:
        is_ok = False
    if report.unreached is not None and report.unreached.is_interrupted:
        is_ok = False
    style = _style(report, options.max_error, options.tolerance)
    return CommandResult(str(report), report, report.to_json(), is_ok, style)


def _style(report: PrecisionReport, *bounds: float | None) -> str:
    """Returns green for what is right: without a bound, an error is neither."""
    if any(bound is not None and report.error <= bound for bound in bounds):
        return "green"
    has_costs = report.work and report.work.costs
    has_findings = report.error or report.integers or has_costs
    return "" if has_findings else "green"


def _search_plan(
    options: argparse.Namespace, call: NamedCall, inputs: PlannedInputs, show: Show
) -> CommandResult:
    """Returns the plan that a search finds, and writes it."""
    with call.running():
        search = plan_call(
            call.function,
            call.args,
            call.kwargs,
            options.narrow,
            options.tolerance,
            inputs,
            show,
        )
    # Saved although it is of no use: the user may look at it, and the status tells.
    search.plan.save(options.out)
    text = f"{search}\n{options.out} is written."
    return _result_of(search, text, search.is_of_use)


def _measure_plan(
    options: argparse.Namespace, call: NamedCall, inputs: PlannedInputs, show: Show
) -> CommandResult:
    """Returns what a function loses by the plan of a file."""
    with call.running(PlanError):
        search = check_call(
            call.function,
            call.args,
            call.kwargs,
            options.check,
            options.tolerance,
            inputs,
            show,
        )
    return _result_of(search, str(search), search.is_within)


def _result_of(search: PlanSearch, text: str, is_ok: bool) -> CommandResult:
    data = plain(search) | {"ok": is_ok}
    return CommandResult(text, search, as_json(data), is_ok)


def _reference(name: str | None, reader: Reader, call: NamedCall) -> PyTree:
    """Returns the arrays of a file by path, or what a module has under a name."""
    if name is None:
        return None
    # On Windows a path has a colon too.
    if ":" in name and not name.endswith(".npz"):
        reference = reader.load(name, "Write for example: --reference FILE.py:f")
        misfit = call.misfit(reference) if callable(reference) else ""
        if misfit:
            raise UsageError(
                f"{name} does not take what {call.inputs} gives: {misfit}. Let it take the "
                f"arguments of {call.target}, or name what this should return"
            )
        return reference
    try:
        file = np.load(name)
        if isinstance(file, np.ndarray):  # of numpy.save, for the only output
            return {"out": file}
        with file:
            return {key: file[key] for key in file.files}
    except Exception as error:
        raise UsageError(
            f"--reference {name} cannot be read ({type(error).__name__}). Write "
            "the file with numpy.savez, with the path of each output as its key: "
            "numpy.savez(file, **{\"['logits']\": array}), or out=array for the only one"
        ) from error
