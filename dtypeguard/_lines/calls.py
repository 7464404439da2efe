"""Sees the calls between the user's code and JAX while a program is traced."""

import contextlib
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from threading import get_ident
from types import CodeType, FrameType

import jax
import numpy as np
from jax.core import Tracer

from .._leaves.types import Function, PyTree
from .._source.files import is_users

# Called with what a call returns or yields; with None if it raises.
Left = Callable[[PyTree], None]


class Calls:
    """While entered, sees the calls between the user's code and JAX in this thread.

    It uses `sys.monitoring`, beside other tools; two at a time can. Python 3.11 has only a
    trace function (`sys.settrace`; a profile function takes a tenth longer). If there is
    one already, such as a debugger's, `Calls` leaves that alone and sees nothing.
    """

    def __enter__(self):
        self.is_inside = False  # of a call into JAX
        self._hook = _seen_by(self)
        self._hook.__enter__()
        return self

    def __exit__(self, *exception):
        self._hook.__exit__(*exception)
        del self._hook

    def into_jax(self, frame: FrameType, user: FrameType) -> Left | None:
        """Sees a call from the user's code; returns what sees its end, if that matters.

        Args:
            frame: of a function of JAX, or of another that is not the user's.
            user: the frame that called it.
        """

    def into_user(self, frame: FrameType) -> Left | None:
        """Sees a call of the user's code; returns what sees its end, if that matters."""

    def call(self, frame: FrameType) -> Left | None:
        was_inside = self.is_inside
        if is_users(frame.f_code.co_filename):
            end, self.is_inside = self.into_user(frame), False
        elif was_inside:
            return None
        else:
            user = frame.f_back
            while user is not None and not is_users(user.f_code.co_filename):
                frame, user = user, user.f_back  # whose call was not seen
            if user is None:
                return None
            end, self.is_inside = self.into_jax(frame, user), True

        def left(value: PyTree) -> None:
            self.is_inside = was_inside
            if end is not None:
                end(value)

        return left


if sys.version_info >= (3, 12):

    @contextlib.contextmanager
    def _seen_by(calls: Calls) -> Iterator[None]:
        """A context in which `calls` sees all calls, those inside of JAX only at first."""
        monitoring, events, thread = sys.monitoring, sys.monitoring.events, get_ident()
        # 3 and 4 are nobody's.
        tool = next((tool for tool in (3, 4) if monitoring.get_tool(tool) is None), None)
        if tool is None:
            yield
            return
        public = _public_code(len(sys.modules))
        running: dict[FrameType, Left] = {}
        seen: dict[int, CodeType] = {}  # by identity: to hash one takes long

        def enter(code: CodeType, instruction: int, *error: object) -> object:
            if get_ident() != thread:
                return None
            frame = sys._getframe(1)
            if left := calls.call(frame):
                running[frame] = left
                if id(code) not in seen:
                    seen[id(code)] = code
                    monitoring.set_local_events(tool, code, ends)
            elif not error and _is_inner(code, public):
                return monitoring.DISABLE  # as no event can be in which an error is thrown
            return None

        def leave(code: CodeType, instruction: int, value: PyTree) -> None:
            if left := running.pop(sys._getframe(1), None):
                left(value)

        def unwind(code: CodeType, instruction: int, error: object) -> None:
            if left := running.pop(sys._getframe(1), None):
                left(None)

        ends = events.PY_RETURN | events.PY_YIELD
        everywhere = {
            events.PY_START: enter,
            events.PY_RESUME: enter,
            events.PY_THROW: enter,
            events.PY_UNWIND: unwind,
        }
        callbacks = everywhere | {events.PY_RETURN: leave, events.PY_YIELD: leave}
        monitoring.use_tool_id(tool, "dtypeguard")
        for event, callback in callbacks.items():
            monitoring.register_callback(tool, event, callback)
        monitoring.set_events(tool, sum(everywhere))
        monitoring.restart_events()
        try:
            yield
        finally:
            monitoring.set_events(tool, 0)
            for code in seen.values():
                monitoring.set_local_events(tool, code, 0)
            for event in callbacks:
                monitoring.register_callback(tool, event, None)
            monitoring.free_tool_id(tool)

else:

    @contextlib.contextmanager
    def _seen_by(calls: Calls) -> Iterator[None]:
        """A context in which `calls` sees all calls."""
        others: dict[int, CodeType] = {}  # not the user's; by identity, as above

        def enter(frame: FrameType, event: str, value: PyTree) -> Function | None:
            code = frame.f_code
            if calls.is_inside and id(code) in others:
                return None
            left = calls.call(frame)
            if left is None:
                others[id(code)] = code
                return None
            frame.f_trace_lines = False

            def until_left(frame: FrameType, event: str, value: PyTree) -> Function:
                if event == "return":
                    left(value)
                return until_left

            return until_left

        if sys.gettrace() is not None:
            yield
            return
        sys.settrace(enter)
        try:
            yield
        finally:
            sys.settrace(None)


_NUMPY = os.path.dirname(np.__file__) + os.sep
# The modules of JAX with functions of arrays. What JAX calls from others is not seen again.
_PUBLIC = re.compile(r"jax\.(image|lax|nn|numpy|random|scipy|tree)(\.[a-z]\w*)*")


def _is_inner(code: CodeType, public: Mapping[int, CodeType]) -> bool:
    """Whether JAX calls a function, and users do not for arrays."""
    file = code.co_filename
    return not (id(code) in public or file.startswith(_NUMPY) or is_users(file))


@functools.lru_cache(1)
def _public_code(modules: int) -> Mapping[int, CodeType]:
    """The code of JAX, by identity, that users call for arrays.

    Args:
        modules: how many are imported; JAX imports some late.
    """
    named = [*sys.modules.items()]
    public = [module for name, module in named if _PUBLIC.fullmatch(name)]
    things = [thing for module in public for thing in vars(module).values()]
    things += [vars(type(thing)).get("__call__") for thing in things]
    attributes = [getattr(Tracer, name, None) for name in {*dir(jax.Array)} - {"__init__"}]
    things += [getattr(thing, "fget", None) or thing for thing in attributes]
    codes = [thing.__code__ for thing in things if inspect.isfunction(thing)]
    return {id(code): code for code in codes}
