"""Distinguishes the user's files from those of packages, JAX, Python and dtypeguard."""

import functools
import os
import sysconfig

import jax
import jaxlib
import numpy as np

_PATHS = sysconfig.get_paths()
_PACKAGES = tuple(_PATHS[name] + os.sep for name in ("purelib", "platlib"))
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NOBODYS = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep
    for file in (jax.__file__, jaxlib.__file__, np.__file__)
)


def short_path(file: str) -> str:
    """A path relative to the installed packages or the working directory, or in full."""
    for root in (*_PACKAGES, os.getcwd() + os.sep):
        if file.startswith(root):
            return file.removeprefix(root)
    return file


def package(file: str) -> str:
    """The name of the installed package that a file belongs to."""
    return short_path(file).replace(os.sep, "/").partition("/")[0].removesuffix(".py")


def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package or to dtypeguard."""
    return file.startswith((*_PACKAGES, _OURS))


def is_ours(file: str) -> bool:
    """Whether a file belongs to dtypeguard, its optimizers aside."""
    return file.startswith(_OURS) and not is_users(file)


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file belongs to none of JAX, NumPy, Python and dtypeguard.

    The optimizers of dtypeguard count like those of any other package.
    """
    if file.startswith(_OURS):
        return file.startswith(os.path.join(_OURS, "_optimizers"))
    if file.startswith(_PACKAGES):
        return not file.startswith(_NOBODYS)
    return not file.startswith((_PATHS["stdlib"] + os.sep, "<frozen ", *_NOBODYS))
