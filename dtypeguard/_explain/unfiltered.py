"""JAX's frames in errors: kept while errors are to be explained, and then taken out.

`dtypeguard run` imports this file while JAX is being imported. When it is imported it may
use JAX's options and nothing else of JAX.
"""

import contextlib
import os
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType

import jax

FOLDER_OF_JAX = os.path.join(*jax.__path__, "")


class Unfiltered:
    """Keeps JAX's traceback filtering off while any context is open, in any thread.

    Attributes:
        before: the option outside of any context.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open_contexts = 0
        self.before = ""

    def enter(self) -> None:
        """Turns the filtering off, for the first context."""
        with self._lock:
            # JAX's option is of the whole process: another thread may be inside as well.
            if self._open_contexts == 0:
                self.before = jax.config.jax_traceback_filtering  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import
                jax.config.update("jax_traceback_filtering", "off")
            self._open_contexts += 1

    def leave(self) -> None:
        """Sets the option back after the last context, unless the user has set it since."""
        with self._lock:
            self._open_contexts -= 1
            option = jax.config.jax_traceback_filtering  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import
            if self._open_contexts == 0 and option == "off":
                jax.config.update("jax_traceback_filtering", self.before)


UNFILTERED = Unfiltered()


def printed(error: BaseException) -> Iterator[BaseException]:
    """Yields the errors that Python prints with one: its causes, and members of groups."""
    parts = [error]
    for part in parts:
        yield part
        linked = [part.__cause__]
        if not part.__suppress_context__:
            linked += [part.__context__]
        if isinstance(part, BaseExceptionGroup):
            linked += part.exceptions
        for linked_error in linked:
            # Somebody may raise an error from itself.
            if linked_error is not None and linked_error not in parts:
                parts.append(linked_error)


def hide_jax(error: BaseException) -> None:
    """Takes JAX's frames out of an error that is explained, where JAX would."""
    if UNFILTERED.before == "off":
        return
    for part in printed(error):
        with contextlib.suppress(Exception):  # an error may be frozen
            trace = part.__traceback__
            part.__traceback__ = _without_jax(trace)


def _without_jax(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback as JAX filters it: only if it passed a boundary of JAX."""
    # All of JAX's public functions have the code of one wrapper.
    boundary = getattr(jax.lax.scan, "__code__", None)
    if not any(frame.f_code is boundary for frame, _ in traceback.walk_tb(trace)):
        return trace
    steps_outside = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(FOLDER_OF_JAX):
            steps_outside.append(trace)
        trace = trace.tb_next
    for step in reversed(steps_outside):
        trace = TracebackType(trace, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return trace
