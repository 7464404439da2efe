"""Audits the optimizer or the step that a command line names."""

import argparse
import ast
import contextlib
import dataclasses
import functools
import inspect
import re
import sys
from typing import Any

import jax.numpy as jnp

from .._audit.audit import audit
from .._audit.report import AuditReport
from .._audit.step import audit_made_step
from .._leaves.arguments import is_transformation, parameters, required
from .._leaves.compat import add_x64, x64_enabled
from .._leaves.types import Args, DType, Kwargs, Optimizer
from .._lines.monitored import RECORD
from .._program.trace import TraceFailed
from .._testing.entry import Entry
from .._testing.recipes import RECIPES, Recipe
from .forms import check_files, deliver
from .options import right
from .output import UsageError
from .targets import FORM, NamedCall, Reader, as_usage_error

# Dtypes of params and gradients, as options, and whether --x64 is among them.
_Inputs = tuple[str, str | None, bool]
# With these an optimizer shows that it does not keep its types.
_TELLING: tuple[_Inputs, ...] = (
    ("float32", None, False),
    ("bfloat16,float32", None, False),
    ("bfloat16", "float32", False),
    ("float32", None, True),
)


def audited(options: argparse.Namespace) -> int:
    """Audits what is named, shows the report and writes it."""
    check_files(options)
    given = vars(options)
    named = [f"--{x}" for x in ("set", "params", "grads") if given[x] not in (None, [])]
    is_step = options.step or options.inputs is not None
    if is_step and options.inputs is None:
        advice = f"Write: {_as_step(options.target)}"
        raise UsageError(f"a step needs a function that gives its arguments. {advice}")
    if is_step and named:
        raise UsageError(
            f"{named[0]} is for an optimizer, and --inputs sets the dtypes of a step. "
            f"Write: {_as_step(options.target)}"
        )
    of_step = [f"--{x}" for x in ("carry", "returned") if given[x] not in (None, 0)]
    if not is_step and of_step:
        raise UsageError(f"{of_step[0]} is for a step. Write: {_as_step(options.target)}")
    with RECORD, contextlib.redirect_stdout(sys.stderr):  # a script may print
        report = (_audit_step if is_step else _audit_optimizer)(options)
    return deliver(report, options, report.ok, "green")


def _as_step(target: str) -> str:
    file = target.rpartition(":")[0]
    return f"dtypeguard audit {target} --inputs {file or 'FILE.py'}:inputs"


def _audit_optimizer(options: argparse.Namespace) -> AuditReport:
    """The audit on small params; if nobody chose types, the first that finds something."""
    reader, settings = Reader(options), dict[str, object]()
    for name, value in map(_setting, options.set):
        if name in settings:
            raise UsageError(f"--set {name}=... is given twice. Write the one that counts")
        settings[name] = value
    if options.params is not None or options.grads is not None:
        params = "float32" if options.params is None else options.params
        inputs = params, options.grads, options.x64
        return _audited(reader, options.target, settings, inputs)
    choices = [x for x in _TELLING if not x[2]] if options.x64 else _TELLING
    choices = [(params, grads, x64 or options.x64) for params, grads, x64 in choices]
    reports = list[AuditReport]()
    said = f"Tried {', '.join(map(_as_options, choices))}."
    for choice in choices:
        reports.append(_audited(reader, options.target, settings, choice))
        # In types that nobody asked for, an update may be as wide as its gradient.
        if reports[1:] and all(drift.where == "updates" for drift in reports[-1].drifts):
            reports[-1] = reports[0]
        if not reports[-1].ok:
            said = f"Found with {_as_options(choice)}."
            break
    return dataclasses.replace(reports[-1], summaries=(*reports[-1].summaries, said))


def _as_options(inputs: _Inputs) -> str:
    params, grads, x64 = inputs
    return f"--params {params}{f' --grads {grads}' if grads else ''}{' --x64' * x64}"


def _audited(
    reader: Reader, target: str, settings: dict[str, object], inputs: _Inputs
) -> AuditReport:
    """The audit in types and under a flag, under which the optimizer is made."""
    params, grads, x64 = inputs
    with add_x64(x64):
        made, name = reader.target(), target.rpartition(":")[2]
        dtypes = _dtypes("--params", params)
        types = dtypes, dtypes if grads is None else _dtypes("--grads", grads)
        make = lambda: made
        if not is_transformation(made) or inspect.isclass(made):
            make = functools.partial(_call, target, made, settings)
            name += "(...)"
        elif settings:
            raise UsageError(
                f"{target} is an optimizer already and takes no --set. "
                f"Write: dtypeguard audit {target}"
            )
        opt = make()
        # A few of Optax's take params or gradients of other forms than a plain tree.
        entry = Entry(target, make, RECIPES.get(target.replace(":", "."), Recipe()))
        arrays, updates, extra_args = entry.feed(*types)
        report = audit(opt, arrays, updates=updates, extra_args=extra_args)
    return dataclasses.replace(report, name=name)


def _call(target: str, factory: Any, settings: dict[str, object]) -> Optimizer:
    """The optimizer that a function makes."""
    if not callable(factory):
        raise UsageError(
            f"{target} is {factory!r}: neither an optimizer nor a function that makes one. "
            + right("audit")
        )
    taken, needed = parameters(factory), required(factory)
    missing = [name for name in needed if name not in settings]
    unknown = [name for name in settings if name not in taken]
    names = missing or [name for name in settings if name in taken] or [*taken][:1]
    write = f"dtypeguard audit {target} " + " ".join(f"--set {x}=VALUE" for x in names)
    if missing and not settings:  # nothing is called to find out what it is
        raise UsageError(
            f"{target} needs {', '.join(missing)}. If it is a step: {_as_step(target)}. If "
            f"it makes an optimizer: {write}, or audit FILE.py:NAME where a VALUE is not a "
            "literal"
        )
    try:
        made = factory(**settings)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".rstrip(".: ")
        advice = f" It takes {', '.join(taken)}." if unknown else ""
        advice += f" Write: {write}" if names else ""
        raise UsageError(f"{target} cannot be called: {reason}.{advice}") from error
    if not is_transformation(made):
        raise UsageError(
            f"{target} returned {made!r}, which is not an optimizer. {right('audit')}"
        )
    return made


def _audit_step(options: argparse.Namespace) -> AuditReport:
    """The audit of a step, whose inputs are made while it is traced."""
    reader, name = Reader(options), options.target.rpartition(":")[2]
    made = list[NamedCall]()

    def make() -> tuple[Args, Kwargs]:
        args, kwargs = inputs()
        made.append(NamedCall(options.target, options.inputs, step, args, kwargs))
        return args, kwargs

    with add_x64(options.x64):
        step, inputs = reader.step(), reader.arguments(options.inputs)
        try:
            report = audit_made_step(step, make, options.carry, options.returned, name)
        except TraceFailed as failed:
            with as_usage_error(f"{options.inputs} cannot be called"):
                raise failed.__cause__ or failed from None
        except (TypeError, ValueError) as error:  # about the carry
            if not made or not made[-1].misfit() or made[-1].is_taken:
                asks = re.search(r"(Write|Say) .*(carry|returned)=", str(error), re.DOTALL)
                raise UsageError(f"{error}{_OPTIONS if asks else ''}") from error
            report = None
    wrong = made[-1].misfit() if made else ""
    if report is None or (wrong and report.error and report.error.is_of_call):
        unfit = f"does not give what {options.target} takes"
        raise UsageError(f"{options.inputs} {unfit}: {wrong}. {FORM}")
    return report


_OPTIONS = (
    " Here these are --carry and --returned, such as --carry 0,1 or --carry "
    "params,opt_state."
)


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(
            f"--set {text!r} is not name=value. Write for example: --set learning_rate=1e-3"
        )
    if value in ("true", "false", "none"):  # as strings, even "false" is true
        advice = f"--set {name}={value.title()}"
        raise UsageError(f"--set {text!r} would be a string. Write: {advice}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _dtypes(option: str, text: str) -> tuple[DType, ...]:
    """The dtypes of a list such as `bf16,float32`."""
    example = f"Write for example: {option} bfloat16,float32"
    dtypes = []
    for name in text.split(","):
        dtype, wrong = dtype_named(name), ""
        if dtype is None:
            wrong = f"{name!r} is not a dtype. {example}"
        elif not jnp.issubdtype(dtype, jnp.inexact):
            wrong = f"{name} is not floating or complex. {example}"
        elif dtype in ("float64", "complex128") and not x64_enabled():
            wrong = f"{name} needs --x64 as well"
        if wrong:
            raise UsageError(f"{option} {text!r}: {wrong}")
        dtypes.append(dtype)
    return tuple(dtypes)


def dtype_named(name: str) -> DType:
    """The dtype of a name in full or as in a jaxpr, such as `bf16`; None for others."""
    short = re.fullmatch(r"(bf|f|c)(\d+.*)", name.strip())
    try:
        return jnp.dtype(_LETTERS[short[1]] + short[2] if short else name.strip())
    except TypeError:
        return None


_LETTERS = {"bf": "bfloat", "f": "float", "c": "complex"}
