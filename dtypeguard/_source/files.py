"""Distinguishes the user's files from those of packages, JAX, Python and dtypeguard.

A file is of a package if it lies where this Python installs packages, in the folder of an
imported library that `PACKAGES_BY_NAME` names, or where the record of a package on the path
says. An editable installation is the user's.
"""

import functools
import importlib.metadata
import os
import site
import sys
import sysconfig
from typing import Any

from .._leaves.internals import PACKAGES_BY_NAME


def _folder(path: str) -> str:
    return os.path.join(os.path.abspath(path), "")


_PYTHON = "python"
# What dtypeguard reports about belongs to none of these.
BELOW_THE_USER = ("dtypeguard", "jax", "jaxlib", "numpy", _PYTHON)
_STANDARD_LIBRARY = _folder(sysconfig.get_path("stdlib"))
_SITES = (*site.getsitepackages(), site.getusersitepackages())
# Before the standard library, in a folder of which they may be.
_SITE_FOLDERS = tuple(map(_folder, _SITES))
_OURS = _folder(os.path.dirname(os.path.dirname(__file__)))
_OUR_OPTIMIZERS = os.path.join(_OURS, "_optimizers", "")
_SCENE_FOLDER = os.path.join(_OURS, "_cli", "scenes", "")  # written as a user's


def short_path(file: str) -> str:
    """Returns a path from the installed packages or the working directory.

    That of a file of the user's elsewhere is absolute: editors and terminals open it.
    """
    root = _root(file)
    if root is None:
        root = _folder("")
    return file.removeprefix(root)


def file_text(file: str) -> str:
    """Returns a file as reports name it, a cell as IPython does: `Cell In[3]`."""
    return _cell(file) or short_path(file)


def line_text(file: str, line: int) -> str:
    """Returns a line as reports name it: `train.py:5`, `Cell In[3], line 5`."""
    cell = _cell(file)
    if cell:
        return f"{cell}, line {line}"
    path = short_path(file)
    return f"{path}:{line}"


def _cell(file: str) -> str:
    """Returns the name of a cell; empty for a file, and outside of IPython."""
    # To import IPython would take half a second.
    ipython: Any = sys.modules.get("IPython")
    if ipython is None:
        return ""
    shell = ipython.get_ipython()
    if shell is None:
        return ""
    # None for a file, else a pair such as "Cell", "In[3]".
    words = shell.compile.format_code_name(file)
    return " ".join(words or ())


@functools.cache
def package(file: str) -> str:
    """Returns the package that a file belongs to; empty for the user's own files."""
    root = _root(file)
    if root is None:
        return ""
    if root == _STANDARD_LIBRARY:
        return _PYTHON
    name, _, _ = file.removeprefix(root).partition(os.sep)
    return name.removesuffix(".py")


def is_installed(file: str) -> bool:
    """Returns whether a file is not the user's own, but of a package or of Python."""
    return package(file) != ""


@functools.cache
def is_recorded(file: str) -> bool:
    """Returns whether a file is the user's own, and has lines: not so `<string>`."""
    return not file.startswith("<") and not is_installed(file)


def is_ours(file: str) -> bool:
    """Returns whether a file belongs to dtypeguard, its optimizers aside."""
    return package(file) == "dtypeguard" and not is_users(file)


@functools.cache
def is_users(file: str) -> bool:
    """Returns whether a file belongs to none of JAX, NumPy, Python and dtypeguard.

    The optimizers of dtypeguard count like those of any other package, the scenes of
    `dtypeguard demo` like the user's own files.
    """
    return package(file) not in BELOW_THE_USER or file.startswith(_OUR_OPTIMIZERS)


@functools.cache
def _root(file: str) -> str | None:
    """Returns the folder that holds the package of a file; None for the user's files."""
    if file.startswith(_SCENE_FOLDER):
        return None
    if file.startswith("<frozen "):
        return _STANDARD_LIBRARY
    for folder in _SITE_FOLDERS:
        if file.startswith(folder):
            return folder
    # A library may also lie unpacked on the path, or in an archive.
    for name in ("dtypeguard", *PACKAGES_BY_NAME):
        module = sys.modules.get(name)
        for path in getattr(module, "__path__", ()):
            if file.startswith(_folder(path)):
                return _folder(os.path.dirname(path))
    # `pip install --target`, a vendored folder and Bazel put packages on the path.
    for path in sys.path:
        folder = _folder(path)
        name, _, _ = file.removeprefix(folder).partition(os.sep)
        # To read records takes long: only those of the folder that holds the file.
        if file.startswith(folder) and name in _recorded_names(path):
            return folder
    if file.startswith(_STANDARD_LIBRARY):
        return _STANDARD_LIBRARY
    return None


@functools.cache
def _recorded_names(folder: str) -> frozenset[str]:
    """Returns what is installed in a folder, by the records of its packages.

    A project may keep its own files beside them.
    """
    names = set()
    for distribution in importlib.metadata.distributions(path=[folder]):
        # An editable installation has none in the folder of the project.
        record = distribution.read_text("RECORD") or ""
        for line in record.splitlines():
            # A line has the path of a file, then its hash and its size after commas.
            name, _, _ = line.replace(",", "/").partition("/")
            names.add(name)
    return frozenset(names)
