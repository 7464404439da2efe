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
_TOOLS = (4, 3)  # places for tools that no known tool takes


class Monitored:
    """Records where the user's files make their arrays, while it is entered.

    Before Python 3.12, and where other tools have taken all places, nothing is recorded.
    It may be entered several times, in one another too. What it knows of functions it
    keeps; of arrays it knows only those that are alive.
    """

    def __init__(self) -> None:
        self.recorder = Recorder()
        self._tool: int | None = None
        self._entered = 0
        self._lock = threading.RLock()
        self._busy: set[int] = set()  # threads that record
        # The functions that have events, by identity, as to hash code takes long.
        self._codes: dict[int, tuple[CodeType, int]] = {}
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
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:
            return
        free = [tool for tool in _TOOLS if monitoring.get_tool(tool) is None]
        if not free:
            return
        self._tool = free[0]
        self._monitoring = monitoring
        events = monitoring.events
        callbacks = {
            events.LINE: self._on_line,
            events.PY_RETURN: self._on_return,
            events.PY_YIELD: self._on_return,
            events.CALL: self._on_call,
        }
        self._users_events = sum(callbacks)
        callbacks[events.PY_START] = self._on_start
        monitoring.use_tool_id(self._tool, "dtypeguard")
        for event, callback in callbacks.items():
            monitoring.register_callback(self._tool, event, callback)
        monitoring.set_events(self._tool, events.PY_START)
        for code, events_of_code in list(self._codes.values()):
            monitoring.set_local_events(self._tool, code, events_of_code)
        for frame in callers(sys._getframe()):
            if is_recorded(frame.f_code.co_filename):
                self._watch(frame.f_code, self._users_events)

    def _stop(self) -> None:
        """Ends."""
        if self._tool is None:
            return
        self._monitoring.set_events(self._tool, 0)
        for code, _ in list(self._codes.values()):
            self._monitoring.set_local_events(self._tool, code, 0)
        self._monitoring.free_tool_id(self._tool)
        self._tool = None
        self._counts.clear()
        self.recorder.forget_calls()

    def _watch(self, code: CodeType, events: int) -> None:
        """Switches on some events of a function, if it has none yet."""
        if id(code) not in self._codes:
            self._codes[id(code)] = code, events
            self._monitoring.set_local_events(self._tool, code, events)

    def _count(self, code: CodeType, event: object) -> int:
        """Returns how often an event was seen, with this time."""
        self._counts[id(code), event] += 1
        return self._counts[id(code), event]

    def _again(self, code: CodeType, event: object) -> object:
        """Returns what switches an event off, once it was looked at often enough."""
        if self._count(code, event) < _MOST_LOOKS:
            return None
        return self._monitoring.DISABLE

    def _record(
        self, record: Callable[..., None], frame: FrameType, *arguments: object
    ) -> None:
        """Calls the recorder; what goes wrong there is not the script's affair."""
        if get_ident() in self._busy:
            return
        with self.unseen():
            with contextlib.suppress(Exception):
                record(frame, *arguments)
            release([frame])

    def _on_start(self, code: CodeType, instruction: int) -> object:
        if code.co_qualname in TRACED:
            self._record(self.recorder.on_trace_end, sys._getframe(1))
            return None
        if not is_recorded(code.co_filename):
            return self._monitoring.DISABLE
        self._watch(code, self._users_events)
        self._record(self.recorder.on_call, sys._getframe(1))
        return self._again(code, instruction)

    def _on_line(self, code: CodeType, line: int) -> object:
        answer = self._again(code, line)
        is_last = answer is not None
        self._record(self.recorder.on_line, sys._getframe(1), line, is_last)
        return answer

    def _on_return(self, code: CodeType, instruction: int, value: object) -> object:
        frame = sys._getframe(1)
        if is_recorded(code.co_filename):
            self._record(self.recorder.on_return, frame, value)
            return self._again(code, ("return", instruction))
        caller = frame.f_back or frame
        is_of_line = is_recorded(caller.f_code.co_filename)
        if is_of_line and self._again(code, ("to", caller.f_lineno)) is None:
            self._record(self.recorder.on_result, caller, value)
        is_often = self._count(code, "returns") > _MOST_RETURNS
        return self._monitoring.DISABLE if is_often else None

    def _on_call(
        self, code: CodeType, instruction: int, function: object, argument: object
    ) -> object:
        """Switches on the returns of a foreign function that the user calls."""
        inner = code_of(function)
        if inner is not None and not is_recorded(inner.co_filename):
            self._watch(inner, self._monitoring.events.PY_RETURN)
        return self._monitoring.DISABLE


# The one of all contexts, hooks and commands: nested use counts.
RECORD = Monitored()
