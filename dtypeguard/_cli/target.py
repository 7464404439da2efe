"""The optimizer that a command line names: found, made, fed and audited."""

import ast
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from .._audit.audit import audit
from .._audit.report import AuditReport
from .._leaves.compat import set_x64
from .._leaves.functions import is_transformation, parameters, required
from .._sweep.entry import Entry
from .._sweep.recipes import RECIPES, Recipe


class UsageError(Exception):
    """What was typed cannot be done; the message shows the right form."""


FORMS = (
    "Write for example: dtypeguard audit optax:adam --set learning_rate=1e-3, "
    "dtypeguard audit my_package.optim:make_optimizer or dtypeguard audit my_script.py:opt"
)


def audit_target(
    target: str, settings: Sequence[str], params: str, grads: str | None, x64: bool
) -> AuditReport:
    """Audits what `MODULE:NAME` or `FILE.py:NAME` stands for, on small params.

    Args:
        target: a transformation, or a function that returns one.
        settings: arguments for that function, each `name=value`.
        params: dtypes, separated by commas, that are dealt out over the params.
        grads: the same for the gradients; those of the params by default.
        x64: whether `jax_enable_x64` is on; the optimizer is made under it too.

    Raises:
        UsageError: if any of these cannot be used.
    """
    arguments = dict(map(_setting, settings))
    dtypes = _dtypes("--params", params, x64)
    grad_dtypes = dtypes if grads is None else _dtypes("--grads", grads, x64)
    with set_x64(x64):
        made = load(target, {})
        name = target.rpartition(":")[2]
        if is_transformation(made) and not inspect.isclass(made):
            if arguments:
                raise UsageError(
                    f"{target} is an optimizer already and takes no --set. "
                    f"Write: dtypeguard audit {target}"
                )
            make = lambda: made
        else:
            make = lambda: _call(target, made, arguments)
            name += "(...)"
        opt = make()
        # A few of Optax's take params or gradients of other forms than a plain tree.
        recipe = RECIPES.get(target.replace(":", "."), Recipe())
        entry = Entry(target, make, recipe)
        params, updates, extra_args = entry.feed(dtypes, grad_dtypes)
        report = audit(opt, params, updates=updates, extra_args=extra_args)
    return dataclasses.replace(report, name=name)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(
            f"--set {text!r} is not name=value. Write for example: --set learning_rate=1e-3"
        )
    if value in ("true", "false", "none"):  # a string, "false" too, is true
        right = f"--set {name}={value.title()}"
        raise UsageError(f"--set {text!r} would be a string. Write: {right}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _dtypes(option: str, text: str, x64: bool) -> tuple[Any, ...]:
    dtypes = []
    for name in text.split(","):
        try:
            dtype = jnp.dtype(_long(name.strip()))
        except TypeError:
            raise UsageError(
                f"{option} {text!r}: {name!r} is no dtype. "
                f"Write for example: {option} bfloat16,float32"
            ) from None
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise UsageError(
                f"{option} {text!r}: {name} is not floating or complex. "
                f"Write for example: {option} bfloat16,float32"
            )
        if dtype in ("float64", "complex128") and not x64:
            raise UsageError(f"{option} {text!r}: {name} needs --x64 as well")
        dtypes.append(dtype)
    return tuple(dtypes)


def _long(name: str) -> str:
    """The name of a dtype that tables have a short one for: `bf16`, `f32`, `f8_e5m2`."""
    short = re.fullmatch(r"(bf|f|c)(\d+.*)", name)
    return _LETTERS[short[1]] + short[2] if short else name


_LETTERS = {"bf": "bfloat", "f": "float", "c": "complex"}


def load(target: str, modules: dict[str, Any]) -> Any:
    """What `MODULE:NAME` or `FILE.py:NAME` stands for.

    Args:
        target: the one or the other.
        modules: those imported so far, by what stands before the colon.

    Raises:
        UsageError: if there is no such thing.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"{target!r} is not MODULE:NAME or FILE.py:NAME. {FORMS}")
    try:
        if where not in modules:
            is_file = where.endswith(".py")
            modules[where] = _import_file(where) if is_file else _import_module(where)
        found = modules[where]
    except (Exception, SystemExit) as error:  # a script may end by itself
        reason = f"{type(error).__name__}: {error}"
        forms = FORMS
        if where.endswith(".py") and "relative import" in reason:
            forms = f"As a part of its package: write PACKAGE.MODULE:{name}."
        raise UsageError(f"{where} cannot be imported: {reason}. {forms}") from error
    part = name
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        like = difflib.get_close_matches(part, dir(found), 1)
        meant = f" Did you mean {like[0]}?" if like else ""
        raise UsageError(f"{where} has no {name}.{meant} {FORMS}") from None
    return found


def _import_module(name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(name)


def _import_file(file: str) -> Any:
    path = os.path.abspath(file)
    name = os.path.basename(path).removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    sys.path.insert(0, os.path.dirname(path))  # as `python FILE` does
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    argv, sys.argv = sys.argv, [file]
    try:
        spec.loader.exec_module(module)
    finally:
        sys.argv = argv
    return module


def _call(target: str, factory: Any, arguments: dict[str, Any]) -> Any:
    if not callable(factory):
        raise UsageError(
            f"{target} is {factory!r}: neither an optimizer nor a function that makes one. "
            + FORMS
        )
    try:
        made = factory(**arguments)
    except Exception as error:
        raise UsageError(_how_to_call(target, factory, arguments, error)) from error
    if not is_transformation(made):
        raise UsageError(f"{target} returned {made!r}, which is no optimizer. {FORMS}")
    return made


def _how_to_call(
    target: str, factory: Any, arguments: dict[str, Any], error: Exception
) -> str:
    taken = parameters(factory)
    missing = [name for name in required(factory) if name not in arguments]
    known = f" It takes {', '.join(taken)}." if arguments.keys() - taken.keys() else ""
    names = missing or [name for name in arguments if name in taken] or [*taken][:1]
    settings = " ".join(f"--set {name}=VALUE" for name in names)
    write = f" Write: dtypeguard audit {target} {settings}" if names else ""
    if missing and not arguments:  # which may be an optimizer, for one that wraps another
        write += ", or audit FILE.py:NAME where a VALUE is no literal"
    reason = f"{type(error).__name__}: {error}".rstrip(".: ")
    return f"{target} cannot be called: {reason}.{known}{write}"
