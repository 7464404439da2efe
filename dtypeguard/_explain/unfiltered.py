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

JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


class Unfiltered:
    """Keeps JAX's traceback filtering off while any context is open, in any thread.

    Attributes:
        before: the option outside of any context.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self.before = ""

    def enter(self) -> None:
        with self._lock:
            if not self._open:
                self.before = jax.config.jax_traceback_filtering  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import
                jax.config.update("jax_traceback_filtering", "off")
            self._open += 1

    def leave(self) -> None:
        with self._lock:
            self._open -= 1
            now = jax.config.jax_traceback_filtering  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import
            if not self._open and now == "off":
                jax.config.update("jax_traceback_filtering", self.before)


UNFILTERED = Unfiltered()


def printed(error: BaseException) -> Iterator[BaseException]:
    """An error, its causes, and the members of a group."""
    queue, seen = [error], set()
    for part in queue:
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        before = part.__cause__
        if before is None and not part.__suppress_context__:
            before = part.__context__
        queue += [before] if before is not None else []
        queue += part.exceptions if isinstance(part, BaseExceptionGroup) else ()


def hide_jax(error: BaseException) -> None:
    """Takes JAX's frames out of an error that is explained, where JAX would."""
    for part in printed(error) if UNFILTERED.before != "off" else ():
        with contextlib.suppress(Exception):  # an error may be frozen
            part.__traceback__ = _without_jax(part.__traceback__)


def _without_jax(trace: TracebackType | None) -> TracebackType | None:
    """A traceback as JAX filters it: without its frames, if it passed a boundary of JAX."""
    boundary = getattr(jax.lax.scan, "__code__", None)
    if not any(frame.f_code is boundary for frame, _ in traceback.walk_tb(trace)):
        return trace
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(JAX):
            kept.append(trace)
        trace = trace.tb_next
    for old in reversed(kept):
        trace = TracebackType(trace, old.tb_frame, old.tb_lasti, old.tb_lineno)
    return trace
