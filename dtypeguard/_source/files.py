"""Distinguishes the user's files from those of packages, JAX, Python and dtypeguard.

A file is of a package if it lies where this Python installs packages, or in the folder of
an imported library that `LIBRARIES` names. What is installed editable is the user's.
"""

import functools
import importlib.util
import os
import site
import sys
from collections.abc import Iterator
from typing import Any

from .._leaves.internals import LIBRARIES


def _folder(path: str) -> str:
    return os.path.join(os.path.abspath(path), "")


_OURS = _folder(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SCENES = _folder(os.path.join(_OURS, "_cli", "scenes"))  # written as a user's
_INSTALLED = (*map(_folder, (*site.getsitepackages(), site.getusersitepackages())),)
_PYTHONS = _folder(os.path.dirname(os.__file__)), "<frozen "
_NOBODYS = tuple(
    _folder(os.path.dirname(spec.origin))
    for name in ("jax", "jaxlib", "numpy")
    if (spec := importlib.util.find_spec(name)) and spec.origin
)


def short_path(file: str) -> str:
    """A path from the installed packages or the working directory.

    That of a file of the user's elsewhere is absolute: editors and terminals open it.
    """
    return file.removeprefix(_root(file) or _folder(""))


def file_text(file: str) -> str:
    """A file as reports name it; the cell of a notebook as IPython does: `Cell In[3]`."""
    return _cell(file) or short_path(file)


def line_text(file: str, line: int) -> str:
    """A line as reports name it: `train.py:5`, `Cell In[3], line 5`."""
    return f"{cell}, line {line}" if (cell := _cell(file)) else f"{short_path(file)}:{line}"


def _cell(file: str) -> str:
    ipython: Any = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return " ".join((shell and shell.compile.format_code_name(file)) or ())


def package(file: str) -> str:
    """The name of the package that a file belongs to; empty for the user's files."""
    inside = short_path(file).replace(os.sep, "/") if is_installed(file) else ""
    return inside.partition("/")[0].removesuffix(".py")


def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package or to dtypeguard."""
    return _root(file) is not None


@functools.cache
def is_recorded(file: str) -> bool:
    """Whether a file is the user's own, and has lines: not so `<string>`."""
    return is_users(file) and not is_installed(file) and not file.startswith("<")


def is_ours(file: str) -> bool:
    """Whether a file belongs to dtypeguard, its optimizers aside."""
    return file.startswith(_OURS) and not is_users(file)


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file belongs to none of JAX, NumPy, Python and dtypeguard.

    The optimizers of dtypeguard count like those of any other package, the scenes of
    `dtypeguard demo` like the user's own files.
    """
    if file.startswith(_OURS):
        return file.startswith((os.path.join(_OURS, "_optimizers"), _SCENES))
    pythons = () if file.startswith(_INSTALLED) else _PYTHONS
    return not file.startswith((*pythons, *_NOBODYS))


@functools.cache
def _root(file: str) -> str | None:
    """The folder, or archive, that holds the package of a file; None for the user's."""
    return None if file.startswith(_SCENES) else next(_roots(file), None)


def _roots(file: str) -> Iterator[str]:
    yield from filter(file.startswith, _INSTALLED)
    for name in ("dtypeguard", *LIBRARIES):
        for path in getattr(sys.modules.get(name), "__path__", ()):
            if file.startswith(_folder(path)):
                yield _folder(os.path.dirname(path))
