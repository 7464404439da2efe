"""Runs a script or a module inside another program, as `python` itself would.

`runpy` finds what to run, by the functions that `pdb` calls as well. Its `run_path` and
`run_module` take the script's `__main__` away when its last line has run. Threads,
functions of `atexit` and results of process pools need it until the end.
"""

import builtins
import importlib.machinery
import os
import pkgutil
import runpy
import sys
from types import CodeType, ModuleType
from typing import Any

_runpy: Any = runpy  # whose annotations leave these functions out


class NotFound(Exception):
    """There is no such script or module."""


def run_script(file: str) -> None:
    """Runs what `python FILE` runs: a script, or the `__main__.py` of a folder or archive.

    `-` stands for standard input.

    Raises:
        NotFound: if it cannot be read.
        SyntaxError: if it does not compile.
    """
    sys.argv[0] = file
    if file == "-":
        _look_in("")
        text, path = sys.stdin.buffer.read(), "<stdin>"
        loader = importlib.machinery.BuiltinImporter
    else:
        path = os.path.join(os.getcwd(), file)
        if hasattr(pkgutil.get_importer(path), "find_spec"):
            _look_in(os.path.abspath(file), always=True)
            _, spec, code = _runpy._get_main_module_details(NotFound)
            return _run_found(spec, code)
        try:
            with open(file, "rb") as source:
                text = source.read()
        except OSError as error:
            raise NotFound(f"can't open file {file!r}: {error.strerror}") from None
        _look_in(os.path.dirname(os.path.realpath(file)))
        loader = importlib.machinery.SourceFileLoader("__main__", path)
    code = compile(text, path, "exec", dont_inherit=True)
    _run(code, __file__=path, __cached__=None, __loader__=loader)


def run_module(name: str) -> None:
    """Runs what `python -m NAME` runs: a module, or the `__main__.py` of a package.

    Raises:
        NotFound: if there is no such module.
    """
    sys.argv[0] = "-m"
    _look_in(os.getcwd())
    _, spec, code = _runpy._get_module_details(name, NotFound)
    sys.argv[0] = spec.origin
    _run_found(spec, code)


def _look_in(folder: str, always: bool = False) -> None:
    """Has imports look in a folder first, where those of the command did.

    Under `python -P` Python itself looks in none but a folder that it runs.
    """
    if not sys.flags.safe_path:
        sys.path[0] = folder
    elif always:
        sys.path.insert(0, folder)


def _run_found(spec: importlib.machinery.ModuleSpec, code: CodeType) -> None:
    _run(
        code,
        __file__=spec.origin,
        __cached__=spec.cached,
        __loader__=spec.loader,
        __package__=spec.parent,
        __spec__=spec,
    )


def _run(code: CodeType, **names: object) -> None:
    """Runs a program in its own `__main__`, which stays until the process ends."""
    main = ModuleType("__main__")
    if sys.version_info < (3, 14):
        names["__annotations__"] = {}
    main.__dict__.update(names, __builtins__=builtins)
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # its name in processes that are spawned
        sys.modules["__mp_main__"] = main
    exec(code, main.__dict__)
