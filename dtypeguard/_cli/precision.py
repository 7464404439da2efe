"""Measures the precision of a function of a command line; searches or checks a plan."""

import argparse
import math
from typing import Any, TextIO

import numpy as np

from .._autocast.plan import PlanError
from .._leaves.compat import add_x64
from .._leaves.types import PyTree
from .._lines.monitored import RECORD
from .._precision.audit import audit_call
from .._precision.curve import check_call, plan_call
from .._precision.planned import PlannedInputs
from .._precision.prepared import Show, status
from .._precision.rows import plain
from . import options as command_line
from .forms import check_files, deliver
from .options import UsageError
from .targets import NamedCall, Reader


def run(options: argparse.Namespace, stdout: TextIO) -> int:
    """Measures a function, searches a plan or checks one; shows what is found."""
    if options.out and options.narrow is None:
        raise UsageError("a search needs --narrow. Write for example: --narrow bfloat16")
    if options.check and options.narrow is not None:
        raise UsageError(
            f"--narrow is for a search: {options.check} says what is narrow. Leave it out"
        )
    check_files(options, options.out)
    way = _checked if options.check else _searched if options.out else _audited
    shown, reader = status(every=command_line.SILENCE), Reader(options)
    with RECORD, shown as show, add_x64(options.x64):
        call = reader.call()
        found = way(options, show, reader, call)
    return deliver(options, stdout, *found)


# What `deliver` is given: a report, whether it is fine, its style then, its data.
_Found = tuple[Any, bool, str, Any]


def _audited(
    options: argparse.Namespace, show: Show, reader: Reader, call: NamedCall
) -> _Found:
    reference = _reference(options.reference, reader, call)
    with call.running():
        report = audit_call(
            *call[2:],
            options.wide,
            options.narrow,
            options.tolerance,
            matmul_precision=options.matmul_precision,
            reference=reference,
            show_status=show,
            inputs=_more(options, reader),
        )
    bound = math.inf if options.max_error is None else options.max_error
    if options.max_error is not None and math.isnan(report.error):
        raise UsageError(
            f"--max-error needs values, and {options.inputs} gives a jax.ShapeDtypeStruct. "
            "Let it give arrays, or leave out --max-error"
        )
    is_ok = not math.isinf(report.error) and not report.error > bound
    is_ok &= all(each.verdict != "differs" for each in report.differences)
    is_ok &= not report.integers
    # Without a bound, an error is neither right nor wrong.
    bounds = options.max_error, options.tolerance
    is_within = any(x is not None and report.error <= x for x in bounds)
    has_findings = report.error or report.integers or (report.work and report.work.costs)
    is_good = is_within or not has_findings
    return report, is_ok, "green" if is_good else "", None


def _searched(
    options: argparse.Namespace, show: Show, reader: Reader, call: NamedCall
) -> _Found:
    more = _more(options, reader)
    with call.running():
        found = plan_call(*call[2:], options.narrow, options.tolerance, more, show)
    found.plan.save(options.out)
    text = f"{found}\n{options.out} is written."
    return text, found.is_of_use, "", plain(found) | {"ok": found.is_of_use}


def _checked(
    options: argparse.Namespace, show: Show, reader: Reader, call: NamedCall
) -> _Found:
    more = _more(options, reader)
    with call.running(PlanError):
        found = check_call(*call[2:], options.check, options.tolerance, more, show)
    return found, found.is_within, "", plain(found) | {"ok": found.is_within}


def _more(options: argparse.Namespace, reader: Reader) -> PlannedInputs:
    """Further inputs, which a search does not see."""
    return PlannedInputs(held_out=[reader.call(name)[3:] for name in options.held_out])


def _reference(name: str | None, reader: Reader, call: NamedCall) -> PyTree:
    """The arrays of a file by path, or what a module has under a name."""
    if name is None:
        return None
    if ":" in name and not name.endswith(".npz"):
        reference = reader.load(name, "Write for example: --reference FILE.py:f")
        if callable(reference) and (wrong := call.misfit(reference)):
            raise UsageError(
                f"{name} does not take what {call.inputs} gives: {wrong}. Let it take the "
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
