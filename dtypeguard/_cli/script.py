"""Runs a script or a module inside another program, as `python` itself would.

`runpy.run_path` and `run_module` take the script's `__main__` away when its last line has
run. Threads, functions of `atexit` and results of process pools need it until the end.
"""

import builtins
import importlib.machinery
import importlib.util
import os
import pkgutil
import sys
from types import CodeType, ModuleType
from typing import NamedTuple


class Program(NamedTuple):
    """A script or a module, compiled.

    Attributes:
        code: its code.
        argv0: the first item of `sys.argv`.
        path0: the first item of `sys.path`.
        names: the names that Python puts into its `__main__`.
    """

    code: CodeType
    argv0: str
    path0: str
    names: dict[str, object]


class NotFound(Exception):
    """There is no such script or module."""


def script(file: str) -> Program:
    """What `python FILE` runs: a script, or the `__main__.py` of a directory or archive.

    `-` stands for standard input.

    Raises:
        NotFound: if it cannot be read.
        SyntaxError: if it does not compile.
    """
    if file == "-":
        path, loader = "<stdin>", importlib.machinery.BuiltinImporter
        names = {"__file__": path, "__cached__": None, "__loader__": loader}
        text = sys.stdin.buffer.read()
        return Program(compile(text, path, "exec", dont_inherit=True), file, "", names)
    path = os.path.join(os.getcwd(), file)
    finder = pkgutil.get_importer(path)
    if finder is not None and hasattr(finder, "find_spec"):
        spec = finder.find_spec("__main__")
        if spec is None:
            raise NotFound(f"can't find '__main__' module in {file!r}")
        return _of_spec(spec, file, os.path.abspath(file))
    try:
        with open(file, "rb") as source:
            text = source.read()
    except OSError as error:
        raise NotFound(f"can't open file {file!r}: {error.strerror}") from None
    names = {
        "__file__": path,
        "__cached__": None,
        "__loader__": importlib.machinery.SourceFileLoader("__main__", path),
    }
    folder = os.path.dirname(os.path.realpath(file))
    return Program(compile(text, path, "exec", dont_inherit=True), file, folder, names)


def module(name: str) -> Program:
    """What `python -m NAME` runs: a module, or the `__main__.py` of a package.

    Raises:
        NotFound: if there is no such module.
    """
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()  # where Python looks for it
    spec = _spec(name)
    if spec.submodule_search_locations is not None:
        spec = _spec(f"{name}.__main__")
    return _of_spec(spec, spec.origin or name, os.getcwd())


def execute(program: Program) -> None:
    """Runs a program in its own `__main__`, which stays until the process ends."""
    main = ModuleType("__main__")
    names = {"__builtins__": builtins, "__spec__": None, "__annotations__": {}}
    if sys.version_info >= (3, 14):
        del names["__annotations__"]
    main.__dict__.update(names, **program.names)
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # its name in processes that are spawned
        sys.modules["__mp_main__"] = main
    sys.argv[0] = program.argv0
    if not sys.flags.safe_path:
        sys.path[0] = program.path0
    exec(program.code, main.__dict__)


def _spec(name: str) -> importlib.machinery.ModuleSpec:
    package = name.rpartition(".")[0]
    try:
        if package:
            __import__(package)
    except ImportError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the package is there and imports something that is not
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise NotFound(f"no module named {name}: {error}") from error
    if spec is None:
        raise NotFound(f"no module named {name}")
    return spec


def _of_spec(spec: importlib.machinery.ModuleSpec, argv0: str, path0: str) -> Program:
    code = getattr(spec.loader, "get_code", lambda name: None)(spec.name)
    if code is None:
        raise NotFound(f"{spec.name} has no code to run")
    names = {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }
    return Program(code, argv0, path0, names)
