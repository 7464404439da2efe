"""Sees the calls between the user's code and JAX while a program is traced."""

import sys
from collections.abc import Callable
from types import FrameType

from .._leaves.types import PyTree
from .._source.files import is_users

# Called with what a call returns or yields; with None if it raises.
Left = Callable[[PyTree], None]


class Calls:
    """While entered, sees the calls between the user's code and JAX in this thread.

    It is a profile function (`sys.setprofile`), which stands beside coverage tools and
    debuggers. If there is one already, it leaves that alone and sees nothing.
    """

    def __enter__(self):
        self.is_inside = False  # of a call into JAX
        self._running: dict[FrameType, Callable[[PyTree], None]] = {}
        self._is_set = sys.getprofile() is None
        if self._is_set:
            sys.setprofile(self._on_event)
        return self

    def __exit__(self, *exception):
        if self._is_set:
            sys.setprofile(None)
        self._running.clear()

    def into_jax(self, frame: FrameType, user: FrameType) -> None:
        """Sees a call from the user's code.

        Args:
            frame: of a function of JAX, or of another that is not the user's.
            user: the frame that called it.
        """

    def into_user(self, frame: FrameType) -> Left | None:
        """Sees a call of the user's code; returns what sees its end, if that matters."""

    def _on_event(self, frame: FrameType, event: str, value: PyTree) -> None:
        if event == "call":
            self._enter(frame)
        elif event == "return" and (left := self._running.pop(frame, None)):
            left(value)

    def _enter(self, frame: FrameType) -> None:
        """A function begins, or a generator goes on."""
        end: Left | None = None
        was_inside = self.is_inside
        if is_users(frame.f_code.co_filename):
            end, self.is_inside = self.into_user(frame), False
        elif (
            was_inside
            or frame.f_back is None
            or not is_users(frame.f_back.f_code.co_filename)
        ):
            return
        else:
            self.into_jax(frame, frame.f_back)
            self.is_inside = True

        def left(value: PyTree) -> None:
            self.is_inside = was_inside
            if end is not None:
                end(value)

        self._running[frame] = left
