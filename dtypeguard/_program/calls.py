"""Sees the calls of a program while it is traced."""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Container
from threading import get_ident
from types import CodeType, FrameType
from typing import ClassVar

from .._leaves.types import Function, PyTree

# Called with what a call returns or yields; with None if it raises.
Left = Callable[[PyTree], None]


class Calls:
    """While entered, sees the calls of a program in this thread.

    It uses `sys.monitoring`, beside other tools; two at a time can. Python 3.11 has only a
    trace function (`sys.settrace`): if there is one already, such as a debugger's, `Calls`
    leaves that alone and sees nothing.

    Attributes:
        ignored: the code, by identity, whose calls are of no interest now.
    """

    ignored: Container[int] = ()

    def __enter__(self):
        self._hook = _Hook(self)
        self._hook.start()
        return self

    def __exit__(self, *exception):
        self._hook.stop()
        del self._hook

    def call(self, frame: FrameType) -> Left | None:
        """Sees a call; returns what sees its end, if that is of interest."""
        raise NotImplementedError

    def is_inner(self, code: CodeType) -> bool:
        """Whether calls of a function are of no interest for as long as `Calls` looks."""
        return False


# After so many calls of no interest `Calls` asks whether a function is ever of interest.
_MANY = 10


if sys.version_info >= (3, 12):

    class _Hook:
        """Shows calls by `sys.monitoring`, at half the cost."""

        _TOOLS: ClassVar = (3, 4)  # those that are nobody's
        _ENDS: ClassVar = sys.monitoring.events.PY_RETURN | sys.monitoring.events.PY_YIELD

        def __init__(self, calls: Calls):
            self.calls = calls
            self._tool: int | None = None
            self._thread = get_ident()
            self._left: dict[FrameType, Left] = {}
            # Of all that was in `_left`, by identity: to hash one takes long.
            self._codes: dict[int, CodeType] = {}
            self._ignored: Counter[int] = Counter()
            events = sys.monitoring.events
            self._everywhere = {
                events.PY_START: self._enter,
                events.PY_RESUME: self._enter,
                events.PY_THROW: self._enter,
                events.PY_UNWIND: self._unwind,
            }
            ends = dict.fromkeys((events.PY_RETURN, events.PY_YIELD), self._leave)
            self._callbacks = self._everywhere | ends

        def start(self) -> None:
            for tool in self._TOOLS:
                with contextlib.suppress(ValueError):  # it is in use
                    sys.monitoring.use_tool_id(tool, "dtypeguard")
                    self._tool = tool
                    break
            else:
                return
            for event, callback in self._callbacks.items():
                sys.monitoring.register_callback(tool, event, callback)
            sys.monitoring.set_events(tool, sum(self._everywhere))
            sys.monitoring.restart_events()

        def stop(self) -> None:
            if self._tool is not None:
                sys.monitoring.set_events(self._tool, 0)
                for code in self._codes.values():
                    sys.monitoring.set_local_events(self._tool, code, 0)
                for event in self._callbacks:
                    sys.monitoring.register_callback(self._tool, event, None)
                sys.monitoring.free_tool_id(self._tool)

        def _enter(self, code: CodeType, instruction: int, *error: object) -> object:
            if get_ident() != self._thread:
                return None
            if id(code) in self.calls.ignored:
                self._ignored[id(code)] += 1
                if self._ignored[id(code)] > _MANY:
                    if self.calls.is_inner(code) and id(code) not in self._codes:
                        # Of the events, an error that is thrown in cannot be disabled.
                        return None if error else sys.monitoring.DISABLE
                    self._ignored[id(code)] = -sys.maxsize  # do not ask again
                return None
            frame = sys._getframe(1)
            left = self.calls.call(frame)
            if left is None or self._tool is None:
                return None
            if id(code) not in self._codes:
                self._codes[id(code)] = code
                sys.monitoring.set_local_events(self._tool, code, self._ENDS)
            self._left[frame] = left
            return None

        def _leave(self, code: CodeType, instruction: int, value: PyTree) -> None:
            if left := self._left.pop(sys._getframe(1), None):
                left(value)

        def _unwind(self, code: CodeType, instruction: int, error: object) -> None:
            if id(code) in self._codes and (left := self._left.pop(sys._getframe(1), None)):
                left(None)

else:

    class _Hook:
        """Shows calls by `sys.settrace`."""

        def __init__(self, calls: Calls):
            self.calls = calls
            self._is_on = False

        def start(self) -> None:
            self._is_on = sys.gettrace() is None
            if self._is_on:
                sys.settrace(self._enter)

        def stop(self) -> None:
            if self._is_on:
                sys.settrace(None)

        def _enter(self, frame: FrameType, event: str, arg: PyTree) -> Function | None:
            if id(frame.f_code) in self.calls.ignored:
                return None
            left = self.calls.call(frame)
            if left is None:
                return None
            frame.f_trace_lines = False

            def until_left(frame: FrameType, event: str, arg: PyTree) -> Function:
                if event == "return":
                    left(arg)
                return until_left

            return until_left
