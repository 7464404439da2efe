"""Runs a script or a module inside another program, as `cProfile` does."""

import builtins
import importlib.machinery
import importlib.util
import io
import os
import runpy
import sys
import types

from .output import UsageError


def run_script(file: str) -> None:
    """Runs a script, or what `python FOLDER` runs, in a `__main__` of its own.

    That stays until the process ends: threads and functions of `atexit` need it.
    """
    if os.path.isdir(file) or file.endswith((".zip", ".pyz")):
        runpy.run_path(file, run_name="__main__")
        return
    try:
        with io.open_code(os.path.abspath(file)) as source:
            text = source.read()
    except OSError as error:
        raise UsageError(f"can't open file {file!r}: {error.strerror}") from None
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(file))
    path = os.path.join(os.getcwd(), file)
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=path,
        __cached__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
        __builtins__=builtins,
    )
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    exec(compile(text, path, "exec", dont_inherit=True), main.__dict__)


def run_module(name: str) -> None:
    """Runs what `python -m NAME` runs."""
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not name.startswith(f"{error.name}."):
            raise
        spec = None
    if spec is None:
        raise UsageError(f"No module named {name}")
    runpy.run_module(name, run_name="__main__", alter_sys=True)
