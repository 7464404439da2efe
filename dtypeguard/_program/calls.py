"""Sees the calls of a program while it is traced."""

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType

from .._leaves.types import Function, PyTree


class Calls:
    """While entered, sees the calls of a program.

    It installs a trace function (`sys.settrace`). If there is one already, such as a
    debugger's, it leaves that alone and sees nothing.
    """

    _watching = False

    def __enter__(self):
        self._watching = sys.gettrace() is None
        if self._watching:
            sys.settrace(self._call)
        return self

    def __exit__(self, *exception):
        if self._watching:
            sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: PyTree) -> Function | None:
        """Called by Python for each call; returns a trace function for its frame."""
        raise NotImplementedError


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """While entered, no `Calls` sees anything: under a trace function, Python is slow."""
    watching = sys.gettrace()
    if isinstance(getattr(watching, "__self__", None), Calls):
        sys.settrace(None)
        try:
            yield
        finally:
            sys.settrace(watching)
    else:
        yield
