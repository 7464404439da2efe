"""The lines of a user's own rules of derivatives."""

import contextlib
from types import CodeType, FrameType

from .._leaves.types import PyTree
from .._source.files import is_installed, is_users
from .calls import Calls, Left
from .tracebacks import OwnLines


class RuleLines(Calls):
    """While entered, what the rules of a `custom_vjp` compute gets their lines."""

    def __init__(self):
        self._lines = OwnLines()

    def __enter__(self):
        self._lines.__enter__()
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self._lines.__exit__()

    def into_user(self, frame: FrameType) -> Left:
        caller = frame.f_back
        is_rule = is_own(frame.f_code) and not (caller and is_own(caller.f_code))
        lines = self._lines.start() if is_rule else contextlib.ExitStack()

        def left(value: PyTree) -> None:
            lines.close()

        return left


def is_own(code: CodeType) -> bool:
    """Whether a function is the user's, and of no package."""
    return is_users(code.co_filename) and not is_installed(code.co_filename)
