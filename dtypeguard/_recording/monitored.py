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

# How often a line is looked at, and a call of a function is seen.
_MOST_SEEN, _MOST_CALLS = 10, 1000
# How often what was made before is looked at as recording begins.
_MOST_STARTS = 100


class Monitored:
    """Records where the user's files make their arrays, while it is entered.

    Before Python 3.12, and where other tools have taken all places, nothing is recorded.
    It may be entered several times, in one another too. What it knows of functions it
    keeps; of arrays it knows only those that are alive.
    """

    def __init__(self) -> None:
        self.recorder = Recorder()
        self._tool: int | None = None
        self._entered = self._starts = 0
        self._lock = threading.RLock()
        self._busy: set[int] = set()  # threads that record
        # By identity, as to hash code takes long: the user's, with the line on which a call
        # begins, and that of others.
        self._own: dict[int, tuple[CodeType, int]] = {}
        self._others: dict[int, CodeType] = {}
        self._seen: Counter[tuple[int, object]] = Counter()

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
        is_outermost = thread not in self._busy
        self._busy.add(thread)
        try:
            yield
        finally:
            if is_outermost:
                self._busy.discard(thread)

    def _start(self) -> None:
        """Begins, in the functions that run as well."""
        monitoring: Any = getattr(sys, "monitoring", None)
        places = (4, 3) if monitoring else ()  # nobody's
        self._tool = next((x for x in places if monitoring.get_tool(x) is None), None)
        if self._tool is None:
            return
        self._starts += 1
        events = monitoring.events
        callbacks = {
            events.PY_START: self._on_start,
            events.LINE: self._on_line,
            events.PY_RETURN: self._on_return,
            events.PY_YIELD: self._on_return,
            events.CALL: self._on_call,
        }
        self._monitoring, self._return = monitoring, events.PY_RETURN
        self._every = sum(callbacks) - events.PY_START
        monitoring.use_tool_id(self._tool, "dtypeguard")
        for event, callback in callbacks.items():
            monitoring.register_callback(self._tool, event, callback)
        monitoring.set_events(self._tool, events.PY_START)
        for code, _ in list(self._own.values()):
            self._set(code, self._every)
        for code in list(self._others.values()):
            self._set(code, self._return)
        for frame in callers(sys._getframe()):
            self._watch(frame.f_code)
            if is_recorded(frame.f_code.co_filename) and self._starts < _MOST_STARTS:
                self._call(self.recorder.were_before, frame)

    def _stop(self) -> None:
        """Ends."""
        if self._tool is None:
            return
        self._monitoring.set_events(self._tool, 0)
        own = [code for code, _ in list(self._own.values())]
        for code in (*own, *list(self._others.values())):
            self._set(code, 0)
        self._monitoring.free_tool_id(self._tool)
        self._tool = None
        self._seen.clear()
        self.recorder.forget()

    def _set(self, code: CodeType, events: int) -> None:
        self._monitoring.set_local_events(self._tool, code, events)

    def _watch(self, code: CodeType) -> None:
        if id(code) not in self._own and is_recorded(code.co_filename):
            lines = [line for *_, line in code.co_lines() if line]
            inside = (line for line in lines if line != code.co_firstlineno)
            self._own[id(code)] = code, next(inside, code.co_firstlineno)
            self._set(code, self._every)

    def _times(self, code: CodeType, event: object) -> int:
        """How often an event was seen, with this time."""
        self._seen[id(code), event] += 1
        return self._seen[id(code), event]

    def _call(self, record: Callable[..., None], frame: FrameType, *given: object) -> None:
        """Calls the recorder; what goes wrong there is not the script's affair."""
        thread = get_ident()
        self._busy.add(thread)
        try:
            with contextlib.suppress(Exception):
                record(frame, *given)
            release([frame])
        finally:
            self._busy.discard(thread)

    def _on_start(self, code: CodeType, instruction: int) -> object:
        is_seen = get_ident() not in self._busy
        if code.co_qualname in TRACED:
            if is_seen:
                self._call(self.recorder.ends_trace, sys._getframe(1))
            return None
        self._watch(code)
        # It has no other line, and so no event of one.
        if id(code) in self._own and _is_on_one_line(code):
            times = self._times(code, code.co_firstlineno)
            if is_seen:
                self._enter(sys._getframe(1), times)
            return None if times <= _MOST_CALLS else self._monitoring.DISABLE
        return self._monitoring.DISABLE

    def _on_line(self, code: CodeType, line: int) -> object:
        if get_ident() in self._busy:
            return None
        frame, times = sys._getframe(1), self._times(code, line)
        is_first = line == self._own[id(code)][1]
        if is_first:
            self._enter(frame, times)
        if times <= _MOST_SEEN:
            self._call(self.recorder.runs, frame, line)
        if is_first or times < _MOST_SEEN:
            return None
        self.recorder.unseen.add((id(code), line))
        return self._monitoring.DISABLE

    def _enter(self, frame: FrameType, times: int) -> None:
        """A function of the user's begins; one that often does is switched off."""
        if times > _MOST_SEEN:
            self.recorder.begins(frame)  # not one that had the same identity
        else:
            self._call(self.recorder.enters, frame)
        if times > _MOST_CALLS:
            self._set(frame.f_code, 0)

    def _on_return(self, code: CodeType, instruction: int, value: object) -> object:
        if get_ident() in self._busy:
            return None
        frame = sys._getframe(1)
        if id(code) in self._own:
            if self._times(code, ("return", instruction)) <= _MOST_SEEN:
                self._call(self.recorder.leaves, frame, value)
            self.recorder.ends(frame)
            return None
        user = frame.f_back
        is_seen = value is not None and id(user and user.f_code) in self._own
        if user and is_seen and self._times(code, user.f_lineno) <= _MOST_SEEN:
            self._call(self.recorder.returns, user, value)
        is_often = self._times(code, None) > _MOST_CALLS
        return self._monitoring.DISABLE if is_often else None

    def _on_call(
        self, code: CodeType, instruction: int, called: object, argument: object
    ) -> object:
        """Sees what functions of others return that the user calls."""
        inner = code_of(called)
        if inner and id(inner) not in self._others and not is_recorded(inner.co_filename):
            self._others[id(inner)] = inner
            self._set(inner, self._return)
        return self._monitoring.DISABLE


def _is_on_one_line(code: CodeType) -> bool:
    return all(line in (None, code.co_firstlineno) for *_, line in code.co_lines())


# The one of all contexts, hooks and commands: nested use counts.
RECORD = Monitored()
