"""Searches the plan of the function that a command line names, or checks one."""

import argparse
import contextlib
import sys
from types import ModuleType
from typing import Any

from .._autocast.entries import PlanError
from .._leaves.types import Args, Kwargs
from .._precision.plan_check import PlanCheck
from .._precision.plan_search import PlanSearch
from .._precision.planned import PlannedInputs, check_call, plan_call
from .._precision.progress import Show, status
from . import output
from .arguments import report_files
from .forms import Annotation, FormedReport
from .inputs import as_error_of_run, as_usage_error, load_inputs
from .load import PLAN_FORMS, UsageError, load
from .precision import dtype_of
from .reports import CLEAN, DRIFT, check_writable, deliver


def plan(options: argparse.Namespace) -> int:
    """Searches a plan and writes it, or checks one.

    Returns:
        The exit status, 0 or 1.

    Raises:
        UsageError: if the function, its inputs or the plan cannot be used.
    """
    _check(options)
    check_writable(report_files(options), options)
    if options.out:
        check_writable({"out": options.out}, options)
    shown = status(every=output.SILENCE)
    with contextlib.redirect_stdout(sys.stderr), shown as show_status:
        found = (_checked if options.check else _searched)(options, show_status)
    if isinstance(found, PlanCheck):
        deliver(_of_check(found), options)
        return CLEAN if found.is_within else DRIFT
    text = str(found)
    if options.out:
        found.plan.save(options.out)
        text += f"\n{options.out} is written."
    elif not report_files(options):
        text += f"\n\n{found.plan.text()}"
    deliver(FormedReport(text, _annotations(found), found.data), options)
    return CLEAN if found.is_of_use else DRIFT


def _check(options: argparse.Namespace) -> None:
    """Refuses options that do not go together."""
    needed = {"narrow": "bfloat16", "tolerance": "0.02"}
    missing = [name for name in needed if getattr(options, name) is None]
    if missing and not options.check:
        right = " ".join(f"--{name} {needed[name]}" for name in missing)
        raise UsageError(f"a search needs --{missing[0]}. Write for example: {right}")
    if options.check and options.narrow:
        raise UsageError(
            f"--narrow is for a search: {options.check} says what is narrow. Leave it out"
        )


def _searched(options: argparse.Namespace, show_status: Show) -> PlanSearch:
    f, args, kwargs, inputs = _call(options)
    narrow = dtype_of("--narrow", options.narrow)
    with as_error_of_run(options.target, options.inputs, (f, args, kwargs)):
        parts = f, args, kwargs, narrow, options.tolerance, inputs
        return plan_call(*parts, show_status)


def _checked(options: argparse.Namespace, show_status: Show) -> PlanCheck:
    f, args, kwargs, inputs = _call(options)
    try:
        call = f, args, kwargs
        with as_error_of_run(options.target, options.inputs, call, PlanError):
            parts = f, args, kwargs, options.check, options.tolerance, inputs
            return check_call(*parts, show_status)
    except PlanError as error:
        raise UsageError(str(error)) from error


def _call(options: argparse.Namespace) -> tuple[Any, Args, Kwargs, PlannedInputs]:
    """The function, its arguments, and the other inputs."""
    modules: dict[str, ModuleType] = {}  # all may share a file, and then its classes

    def arguments(name: str) -> tuple[Args, Kwargs]:
        make = load_inputs(name, options.target, modules)
        with as_usage_error(f"{name} cannot be called"):
            return make()

    f = load(options.target, modules, PLAN_FORMS)
    args, kwargs = arguments(options.inputs)
    also, held_out = ([*map(arguments, x)] for x in (options.also, options.held_out))
    inputs = PlannedInputs(also, held_out, options.budget)
    return f, args, kwargs, inputs


def _annotations(found: PlanSearch) -> list[Annotation]:
    level = "notice" if found.is_of_use else "error"
    return [Annotation(None, "plan", found.headline, level)]


def _of_check(found: PlanCheck) -> FormedReport:
    """A check in the forms of what commands find."""
    level = "notice" if found.is_within else "error"
    return FormedReport(
        str(found), [Annotation(None, "plan", str(found), level)], found.data
    )
