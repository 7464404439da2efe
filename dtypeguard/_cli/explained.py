"""Explains the error that ends a script or a thread, and filters it as JAX does."""

import contextlib
import traceback
from collections.abc import Iterator
from types import TracebackType

import jax

from .._explain.explain import Mending, explain_error, printed
from .._explain.unfiltered import UNFILTERED

_OPTION = "jax_traceback_filtering"


def explain(error: BaseException, is_whole: bool, before: Mending) -> None:
    """Adds the notes to an error, and takes out the frames that JAX would.

    Args:
        error: any.
        is_whole: whether a note lists every leaf.
        before: what to write where an error follows from another call; may return nothing.
    """
    parts = list(printed(error))
    traces, now = [part.__traceback__ for part in parts], jax.config.values[_OPTION]
    jax.config.update(_OPTION, UNFILTERED.before)
    filtered = [_filtered(part) for part in parts]
    jax.config.update(_OPTION, now)
    for part, trace in zip(parts, traces):
        part.with_traceback(trace)
    explain_error(error, is_whole, before)
    for part, trace in zip(parts, filtered):
        part.with_traceback(trace)


def _filtered(error: BaseException) -> TracebackType | None:
    """The traceback as JAX filters it.

    JAX filters what passes the outermost of its functions that do so: it is raised again
    inside one.
    """
    frames = list(_frames(error.__traceback__))
    boundary = getattr(jax.lax.scan, "__code__", None)
    codes = [frame.tb_frame.f_code for frame in frames]
    outside = traceback.walk_stack(frames[0].tb_frame.f_back) if frames else ()
    is_inside = any(frame.f_code is boundary for frame, _ in outside)
    if boundary not in codes or is_inside:  # which was caught there
        return error.__traceback__
    first = codes.index(boundary)

    def again() -> None:
        raise error.with_traceback(frames[first])

    with contextlib.suppress(BaseException):
        jax.jit(again)()
    raised = list(_frames(error.__traceback__))
    start = [frame.tb_frame.f_code for frame in raised].index(again.__code__) + 1
    trace = raised[start] if start < len(raised) else None
    for frame in reversed(frames[:first]):
        trace = TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return trace


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
