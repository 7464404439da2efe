"""Finds what a target of the command line names, in a module or a file."""

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

FORMS = (
    "Write for example: dtypeguard audit optax:adam --set learning_rate=1e-3, "
    "dtypeguard audit my_package.optim:make_optimizer or dtypeguard audit my_script.py:opt"
)

PRECISION_FORMS = (
    "Write for example: dtypeguard precision my_script.py:loss --inputs my_script.py:inputs"
)

PLAN_FORMS = (
    "Write for example: dtypeguard plan train.py:step --inputs train.py:inputs --narrow "
    "bfloat16 --tolerance 0.02 --out train.plan"
)

LOCK_FORMS = (
    "Write for example: dtypeguard lock my_script.py:step --inputs my_script.py:inputs "
    "--check step.lock"
)

DOCS_FORMS = "Write for example: dtypeguard docs explain"


class UsageError(Exception):
    """The command line asks for what cannot be done; the message shows the right form."""


def load(target: str, modules: dict[str, ModuleType], right: str = FORMS) -> Any:
    """Imports what `MODULE:NAME` or `FILE.py:NAME` names.

    `modules` keeps what was imported, by what stands before the colon. Messages end with
    `right`, the right form.

    Raises:
        UsageError: if it does not exist or cannot be imported.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        module, dot, attribute = target.rpartition(".")
        is_dotted = dot and not colon and attribute != "py" and module
        meant = f"Did you mean {module}:{attribute}? " if is_dotted else ""
        raise UsageError(f"{target!r} is not MODULE:NAME or FILE.py:NAME. {meant}{right}")
    try:
        if where not in modules:
            is_file = where.endswith(".py")
            modules[where] = _import_file(where) if is_file else _import_module(where)
    except (Exception, SystemExit) as error:  # a script may exit
        reason = f"{type(error).__name__}: {error}"
        forms = right
        if where.endswith(".py") and "relative import" in reason:
            forms = f"As a part of its package: write PACKAGE.MODULE:{name}."
        raise UsageError(f"{where} cannot be imported: {reason}. {forms}") from error
    found, part = modules[where], name
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        import difflib

        inside = [
            f"{module.__name__}:{part}"
            for module in getattr(found, "__dict__", {}).values()
            if isinstance(module, ModuleType) and hasattr(module, part)
            if module.__name__.startswith(f"{where}.")
        ]
        like = inside or difflib.get_close_matches(part, dir(found), 1)
        meant = f" Did you mean {like[0]}?" if like else ""
        raise UsageError(f"{where} has no {name}.{meant} {right}") from None
    except Exception as error:  # of a property
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"{target} cannot be read: {reason}. {right}") from error
    return found


def _import_module(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(name)


def _import_file(file: str) -> ModuleType:
    path = os.path.abspath(file)
    name = os.path.basename(path).removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    sys.path.insert(0, os.path.dirname(path))  # as `python FILE` does
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    argv, sys.argv = sys.argv, [file]
    try:
        spec.loader.exec_module(module)
    finally:
        sys.argv = argv
    return module
