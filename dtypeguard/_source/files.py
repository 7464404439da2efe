"""Distinguishes the user's files from those of packages, JAX, Python and dtypeguard.

A file is of a package if it lies where this Python installs packages, in the folder of an
imported library that `PACKAGES_BY_NAME` names, or where the record of a package on the path
says. An editable installation is the user's.
"""

import functools
import glob
import importlib.util
import inspect
import os
import site
import sys
from typing import Any

from .._leaves.internals import PACKAGES_BY_NAME


def _folder(path: str) -> str:
    return os.path.join(os.path.abspath(path), "")


def _folders_of_packages(names: tuple[str, ...]) -> tuple[str, ...]:
    folders = []
    for name in names:
        spec = importlib.util.find_spec(name)
        # A package without an origin has no file of its own.
        origin = getattr(spec, "origin", None)
        if not origin:
            continue
        path = os.path.dirname(origin)
        folder = _folder(path)
        folders.append(folder)
    return tuple(folders)


_THIS_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PACKAGE_FOLDER = os.path.dirname(_THIS_FOLDER)
_OURS = _folder(_PACKAGE_FOLDER)
_OUR_OPTIMIZERS = os.path.join(_OURS, "_optimizers")
_SCENES_PATH = os.path.join(_OURS, "_cli", "scenes")
_SCENE_FOLDER = _folder(_SCENES_PATH)  # written as a user's
_SITES = *site.getsitepackages(), site.getusersitepackages()
_INSTALLED = tuple(_folder(path) for path in _SITES)
_LIBRARY_FILE = inspect.getfile(os)
_LIBRARY_FOLDER = os.path.dirname(_LIBRARY_FILE)
_STANDARD_LIBRARY = _folder(_LIBRARY_FOLDER), "<frozen "
_ARRAY_PACKAGES = _folders_of_packages(("jax", "jaxlib", "numpy"))


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
    cell = _cell(file)
    if cell:
        return cell
    return short_path(file)


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
    if words is None:
        return ""
    return " ".join(words)


def package(file: str) -> str:
    """Returns the name of the package that a file belongs to; empty for the user's."""
    if not is_installed(file):
        return ""
    path = short_path(file)
    path = path.replace(os.sep, "/")
    name, _, _ = path.partition("/")
    return name.removesuffix(".py")


def is_installed(file: str) -> bool:
    """Returns whether a file belongs to an installed package or to dtypeguard."""
    return _root(file) is not None


@functools.cache
def is_recorded(file: str) -> bool:
    """Returns whether a file is the user's own, and has lines: not so `<string>`."""
    if file.startswith("<"):
        return False
    return is_editable(file)


def is_editable(file: str) -> bool:
    """Returns whether a file is the user's own, and of no installed package."""
    if is_installed(file):
        return False
    return is_users(file)


def is_ours(file: str) -> bool:
    """Returns whether a file belongs to dtypeguard, its optimizers aside."""
    if is_users(file):
        return False
    return file.startswith(_OURS)


@functools.cache
def is_users(file: str) -> bool:
    """Returns whether a file belongs to none of JAX, NumPy, Python and dtypeguard.

    The optimizers of dtypeguard count like those of any other package, the scenes of
    `dtypeguard demo` like the user's own files.
    """
    if file.startswith(_OURS):
        return file.startswith((_OUR_OPTIMIZERS, _SCENE_FOLDER))
    if file.startswith(_ARRAY_PACKAGES):
        return False
    # Packages may be installed in a folder within Python's own.
    if file.startswith(_INSTALLED):
        return True
    return not file.startswith(_STANDARD_LIBRARY)


@functools.cache
def _root(file: str) -> str | None:
    """Returns the folder that holds the package of a file; None for the user's files."""
    if file.startswith(_SCENE_FOLDER):
        return None
    for folder in _INSTALLED:
        if file.startswith(folder):
            return folder
    # A library may also lie unpacked on the path, or in an archive.
    names = ("dtypeguard", *PACKAGES_BY_NAME)
    for name in names:
        module = sys.modules.get(name)
        paths = getattr(module, "__path__", ())
        for path in paths:
            folder = _folder(path)
            if file.startswith(folder):
                holder = os.path.dirname(path)
                return _folder(holder)
    # `pip install --target`, a vendored folder and Bazel put packages on the path.
    for path in sys.path:
        folder = _folder(path)
        if not file.startswith(folder):
            continue
        inner_path = file.removeprefix(folder)
        name, _, _ = inner_path.partition(os.sep)
        if name in _recorded_names(path):
            return folder
    return None


@functools.cache
def _recorded_names(folder: str) -> frozenset[str]:
    """Returns what is installed in a folder, by the records of its packages.

    A project may keep its own files beside them.
    """
    names = set()
    # The path may hold the brackets of a pattern.
    escaped = glob.escape(folder)
    pattern = os.path.join(escaped, "*.dist-info", "RECORD")
    for record in glob.glob(pattern):
        with open(record, encoding="utf-8") as file:
            for line in file:
                # A line has the path of a file, its hash and its size.
                path, _, _ = line.partition(",")
                name, _, _ = path.partition("/")
                # A line that is a name alone ends in a line break.
                name = name.rstrip()
                names.add(name)
    return frozenset(names)
