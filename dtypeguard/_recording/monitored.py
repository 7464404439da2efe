"""Calls a recorder while the user's code runs, by `sys.monitoring` of Python 3.12.

Every event is switched off once it was seen some times, and is not switched on again:
`restart_events` would also wake what a coverage tool or a debugger has switched off.
"""

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

from .._leaves.internals import TRACED
from .._source.files import is_recorded
from .._source.inert import code_of
from .._source.origin import callers, release
from .recorder import Recorder

# How often a line, a call or a return of the user's is looked at.
_MOST_LOOKS = 10
_MOST_RETURNS = 1000  # of a function that the user calls, from all lines
_TOOL = 4  # a place for a tool that no known tool takes
_monitoring: Any = getattr(sys, "monitoring", None)


class Monitored:
    """Records where the user's files make their arrays, while it is entered.

    Before Python 3.12, and where another tool has taken its place, nothing is recorded.
    It may be entered several times, in one another too. It knows only arrays that are
    alive.
    """

    def __init__(self) -> None:
        self.recorder = Recorder()
        self._is_on = False
        self._entered = 0
        self._lock = threading.RLock()
        self._busy: set[int] = set()  # threads that record nothing
        # The functions that have events, by identity, as to hash code takes long.
        self._codes: dict[int, CodeType] = {}
        self._counts: Counter[tuple[int, object]] = Counter()

    def __enter__(self) -> "Monitored":
        with self._lock:
            self._entered += 1
            if self._entered == 1:
                self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered == 0:
                self._stop()

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """A context in which nothing that this thread does is recorded."""
        thread = get_ident()
        self._busy.add(thread)
        try:
            yield
        finally:
            self._busy.discard(thread)

    def _start(self) -> None:
        """Begins, in the functions that run as well."""
        if _monitoring is None:
            return
        if _monitoring.get_tool(_TOOL) is not None:
            return
        self._is_on = True
        events = _monitoring.events
        callbacks = {
            events.LINE: self._on_line,
            events.PY_RETURN: self._on_return,
            events.PY_YIELD: self._on_return,
            events.CALL: self._on_call,
        }
        self._users_events = sum(callbacks)
        callbacks[events.PY_START] = self._on_start
        _monitoring.use_tool_id(_TOOL, "dtypeguard")
        for event, callback in callbacks.items():
            _monitoring.register_callback(_TOOL, event, callback)
        _monitoring.set_events(_TOOL, events.PY_START)
        for frame in callers(sys._getframe()):
            if is_recorded(frame.f_code.co_filename):
                self._watch(frame.f_code, self._users_events)

    def _stop(self) -> None:
        """Ends."""
        if not self._is_on:
            return
        self._is_on = False
        _monitoring.set_events(_TOOL, 0)
        for code in list(self._codes.values()):
            _monitoring.set_local_events(_TOOL, code, 0)
        _monitoring.free_tool_id(_TOOL)
        self._codes.clear()
        self._counts.clear()
        self.recorder.forget_calls()

    def _watch(self, code: CodeType, events: int) -> None:
        """Switches on some events of a function, if it has none yet."""
        if id(code) in self._codes:
            return
        with self._lock:
            # Another thread may have left the context since this one saw the event.
            if self._is_on:
                self._codes[id(code)] = code
                _monitoring.set_local_events(_TOOL, code, events)

    def _again(self, code: CodeType, event: object, most: int = _MOST_LOOKS) -> object:
        """Returns what switches an event off, once it was looked at often enough."""
        key = id(code), event
        self._counts[key] += 1
        if self._counts[key] < most:
            return None
        return _monitoring.DISABLE

    def _record(
        self, record: Callable[..., None], frame: FrameType, *arguments: object
    ) -> None:
        """Calls the recorder; what goes wrong there is not the script's affair."""
        if get_ident() in self._busy:
            return
        with contextlib.suppress(Exception):
            record(frame, *arguments)
        release([frame])

    def _on_start(self, code: CodeType, instruction: int) -> object:
        frame = sys._getframe(1)
        if code.co_qualname in TRACED:
            self._record(self.recorder.on_trace_end, frame)
            return None
        if not is_recorded(code.co_filename):
            return _monitoring.DISABLE
        self._watch(code, self._users_events)
        self._record(self.recorder.on_call, frame)
        return self._again(code, instruction)

    def _on_line(self, code: CodeType, line: int) -> object:
        frame = sys._getframe(1)
        answer = self._again(code, line)
        is_last = answer is not None
        self._record(self.recorder.on_line, frame, is_last)
        return answer

    def _on_return(self, code: CodeType, instruction: int, value: object) -> object:
        frame = sys._getframe(1)
        if is_recorded(code.co_filename):
            self._record(self.recorder.on_return, frame, value)
            return self._again(code, ("return", instruction))
        caller = frame.f_back or frame
        if is_recorded(caller.f_code.co_filename):
            self._record(self.recorder.on_result, caller, value)
        return self._again(code, "returns", _MOST_RETURNS)

    def _on_call(
        self, code: CodeType, instruction: int, function: object, argument: object
    ) -> object:
        """Switches on the returns of a foreign function that the user calls."""
        inner = code_of(function)
        if inner is not None and not is_recorded(inner.co_filename):
            self._watch(inner, _monitoring.events.PY_RETURN)
        return _monitoring.DISABLE


# The one of all contexts, hooks and commands: nested use counts.
RECORD = Monitored()
