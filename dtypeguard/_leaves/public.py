"""What users write as `dtypeguard.NAME` says so of itself."""

from typing import TypeVar

_T = TypeVar("_T")


def public(thing: _T) -> _T:
    """A class or function that says `dtypeguard` as its module.

    Reprs, error messages and pickles then name what users import, and not the room that
    it happens to stand in: a checkpoint outlives a move.
    """
    thing.__module__ = "dtypeguard"
    return thing
