"""Audits the optimizer or the step that a command line names."""

import argparse
import ast
import dataclasses
import functools
import inspect
import re
from collections.abc import Collection
from types import ModuleType
from typing import Any

import jax.numpy as jnp

from .._audit.audit import audit
from .._audit.report import AuditReport
from .._audit.step import Arguments, audit_made_step
from .._leaves.compat import add_x64, x64_enabled
from .._leaves.functions import is_transformation, parameters, required
from .._leaves.types import DType, Optimizer
from .._program.trace import TraceFailed
from .._source.files import is_installed
from .._testing.entry import Entry
from .._testing.recipes import RECIPES, Recipe
from .inputs import FORM, as_usage_error, load_inputs, misfit, takes
from .load import FORMS, UsageError, load

# Dtypes of params and of gradients, as options, and the x64 flag.
_Inputs = tuple[str, str | None, bool]


def audit_optimizer(options: argparse.Namespace) -> AuditReport:
    """Audits an optimizer on small params, under the flags that its file sets.

    Without params and gradients in the options it tries several, and returns the first
    report on something that changes.

    Raises:
        UsageError: if the target or an option cannot be used.
    """
    target, settings = options.target, {}
    for name, value in map(_setting, options.set):
        if name in settings:
            raise UsageError(
                f"--set {name}=... is given twice. Write the one that is meant"
            )
        settings[name] = value
    params = "float32" if options.params is None else options.params
    inputs: list[_Inputs] = [(params, options.grads, options.x64)]
    is_asked = options.params is not None or options.grads is not None
    if not is_asked:
        inputs += [(params, grads, options.x64) for params, grads in _TELLING]
        inputs += [] if options.x64 else [("float32", None, True)]
    said = f"Tried {', '.join(_as_options(*each) for each in inputs)}."
    reports, modules = [], {}
    for params, grads, x64 in inputs:
        reports.append(_audited(target, settings, (params, grads, x64), modules))
        # In types that nobody asked for, an update may be as wide as its gradient.
        if reports[1:] and all(drift.where == "updates" for drift in reports[-1].drifts):
            reports[-1] = reports[0]
        if not reports[-1].ok:
            said = f"Found with {_as_options(params, grads, x64)}."
            break
    report = reports[-1]
    if is_asked:
        return report
    return dataclasses.replace(report, summaries=(*report.summaries, said))


def _as_options(params: str, grads: str | None, x64: bool) -> str:
    return f"--params {params}{f' --grads {grads}' if grads else ''}{' --x64' * x64}"


# Types of params and gradients with which an optimizer shows that it does not keep them.
_TELLING: tuple[tuple[str, str | None], ...] = (
    ("bfloat16,float32", None),
    ("bfloat16", "float32"),
)


def _audited(
    target: str,
    settings: dict[str, object],
    inputs: _Inputs,
    modules: dict[str, ModuleType],
) -> AuditReport:
    """The audit with params and gradients of some dtypes."""
    params, grads, x64 = inputs
    with add_x64(x64):
        made, name = load(target, modules), target.rpartition(":")[2]
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
        given, updates, extra_args = entry.feed(*types)
        report = audit(opt, given, updates=updates, extra_args=extra_args)
    return dataclasses.replace(report, name=name)


def audit_step(options: argparse.Namespace) -> AuditReport:
    """Audits a step, under the flags that its file sets.

    Raises:
        UsageError: if the target or an option cannot be used.
    """
    modules = {}  # the step and its inputs may share a file, and then its classes
    places, name = (options.carry, options.returned), options.target.rpartition(":")[2]
    wrong, is_taken = "", True

    def make() -> Arguments:
        nonlocal wrong, is_taken
        args, kwargs = inputs()
        wrong, is_taken = misfit(step, args, kwargs), takes(step, args, kwargs)
        return args, kwargs

    with add_x64(options.x64):
        step = load(options.target, modules)
        if is_transformation(step):
            right = f"Write: dtypeguard audit {options.target}"
            raise UsageError(f"{options.target} is an optimizer and no step. {right}")
        inputs = load_inputs(options.inputs, options.target, modules)
        try:
            report = audit_made_step(step, make, *places, name)
        except TraceFailed as failed:
            with as_usage_error(f"{options.inputs} cannot be called"):
                raise failed.__cause__ or failed from None
        except (TypeError, ValueError) as error:  # about the carry
            if not wrong or is_taken:
                asks = re.search(r"(Write|Say) .*(carry|returned)=", str(error), re.DOTALL)
                raise UsageError(f"{error}{_OPTIONS if asks else ''}") from error
            report = None
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
        right = f"--set {name}={value.title()}"
        raise UsageError(f"--set {text!r} would be a string. Write: {right}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _dtypes(option: str, text: str) -> tuple[DType, ...]:
    """The dtypes of a list such as `bf16,float32`."""

    def wrong(reason: str) -> UsageError:
        return UsageError(f"{option} {text!r}: {reason}")

    example = f"Write for example: {option} bfloat16,float32"
    dtypes = []
    for name in text.split(","):
        dtype = dtype_named(name)
        if dtype is None:
            raise wrong(f"{name!r} is not a dtype. {example}")
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise wrong(f"{name} is not floating or complex. {example}")
        if dtype in ("float64", "complex128") and not x64_enabled():
            raise wrong(f"{name} needs --x64 as well")
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


def _call(target: str, factory: Any, arguments: dict[str, object]) -> Optimizer:
    if not callable(factory):
        raise UsageError(
            f"{target} is {factory!r}: neither an optimizer nor a function that makes one. "
            + FORMS
        )
    try:
        made = factory(**arguments)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".rstrip(".: ")
        write = _how_to_call(target, parameters(factory), required(factory), arguments)
        code = getattr(inspect.unwrap(factory), "__code__", None)
        if write and not arguments and code and not is_installed(code.co_filename):
            where, audited = target.rpartition(":")[0], f"dtypeguard audit {target}"
            step = f"{audited} --step --inputs {where}:inputs"
            make = write.removeprefix(" Write:")
            write = f" If it is a step: {step}. If it makes an optimizer:{make}"
        raise UsageError(f"{target} cannot be called: {reason}.{write}") from error
    if not is_transformation(made):
        raise UsageError(f"{target} returned {made!r}, which is not an optimizer. {FORMS}")
    return made


def _how_to_call(
    target: str, taken: Collection[str], needed: list[str], arguments: Collection[str]
) -> str:
    missing = [name for name in needed if name not in arguments]
    unknown = [name for name in arguments if name not in taken]
    names = missing or [name for name in arguments if name in taken] or [*taken][:1]
    settings = " ".join(f"--set {name}=VALUE" for name in names)
    write = f" It takes {', '.join(taken)}." if unknown else ""
    write += f" Write: dtypeguard audit {target} {settings}" if names else ""
    if missing and not arguments:  # it may wrap an optimizer, not a literal
        write += ", or audit FILE.py:NAME where a VALUE is not a literal"
    return write
