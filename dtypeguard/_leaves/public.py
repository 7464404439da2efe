"""Makes public names report `dtypeguard` as their module."""

from typing import TypeVar

_T = TypeVar("_T")


def public(thing: _T) -> _T:
    """Sets the module of a class or function to `dtypeguard`.

    Reprs, error messages and pickles then use the public name. Moving the code between
    rooms does not invalidate a checkpoint.
    """
    thing.__module__ = "dtypeguard"
    return thing
