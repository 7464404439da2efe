"""The tracebacks of equations. The one file that reads JAX's source information.

JAX keeps a traceback for every equation, `eqn.source_info.traceback`. Any release may
change it; without it audits still work and name no lines.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import Any

from .._leaves.internals import TRACING, WITH_RULES
from .._leaves.types import Equation, Jaxpr, Leaf
from .._source.files import is_recorded, is_users
from .._source.origin import Frame, Origin, origin_at, origin_of_frames

# Functions and the instructions in them that call the next; two functions on a line may
# call at the same instruction.
Chain = tuple[tuple[CodeType, int], ...]


@dataclasses.dataclass(frozen=True)
class _EquationTraceback:
    """The traceback of an equation.

    Attributes:
        frames: inside out.
        calls: of users' functions and packages.
        is_of_rule: whether the rule of a derivative made the equation.
    """

    frames: Sequence[Frame]
    calls: Chain
    is_of_rule: bool


def calls_by_jaxpr(stack: Sequence[Equation]) -> Iterator[Chain]:
    """Yields the calls of users' functions behind each equation of a stack."""
    for traceback in _tracebacks(stack):
        yield traceback.calls


def frames_of(stack: Sequence[Equation]) -> Iterator[Frame]:
    """Yields the frames of an equation and of its containers, inside out."""
    for traceback in _tracebacks(stack):
        yield from traceback.frames


def _tracebacks(stack: Sequence[Equation]) -> Iterator[_EquationTraceback]:
    for number, equation in enumerate(stack):
        try:
            traceback = _read_traceback(equation.source_info.traceback)
        except (AttributeError, TypeError):  # there is none, or it stands elsewhere
            continue
        # JAX traces a function of its own once: the rule may be another user's.
        containers = stack[number + 1 :]
        if not (traceback.is_of_rule and any(map(_is_jitted_by_jax, containers))):
            yield traceback


# As many as a program has calls: each is asked for once an equation. Equations on a line
# that runs in a loop have equal tracebacks.
@functools.lru_cache(10_000)
def _read_traceback(traceback: Any) -> _EquationTraceback:
    frames = []
    calls = []
    for frame, *call in zip(traceback.frames, *traceback.raw_frames()):
        if is_users(frame.file_name):
            calls.append(tuple(call))
        elif TRACING.are_in(frame.function_name):
            # Frames further out belong to the first caller of what is traced: JAX caches
            # traces, so that may be somebody else.
            break
        frames.append(Frame(frame.file_name, frame.line_num, frame.function_name))
    is_of_rule = any(WITH_RULES.are_in(frame.function) for frame in until_users(frames))
    return _EquationTraceback(tuple(frames), tuple(calls), is_of_rule)


def line_of_tracer(tracer: Leaf) -> Origin | None:
    """Returns the line that made a tracer, by JAX's own note of it.

    `jnp.asarray(0)` in a trace is a literal, of which no equation tells a line.
    """
    try:
        traceback = _read_traceback(tracer._line_info.traceback)
    except (AttributeError, TypeError):  # no tracer, or it stands elsewhere
        return None
    return origin_of_frames(traceback.frames)


def line_of_traced(jaxpr: Jaxpr) -> Origin | None:
    """Returns the first line of a function of the user's that JAX traced."""
    info: Any = getattr(jaxpr, "debug_info", None)
    file = getattr(info, "func_filename", None)
    if file is None or not is_recorded(file):
        return None
    return origin_at(file, info.func_lineno, info.func_name)


def scopes_of(equation: Equation) -> Sequence[Any]:
    """Returns the name stack of an equation: scopes, and transformations of JAX."""
    name_stack = getattr(equation.source_info, "name_stack", None)
    return getattr(name_stack, "stack", ())


def until_users(frames: Iterable[Frame]) -> Iterator[Frame]:
    """Yields the frames inside the innermost line of the user's."""
    return itertools.takewhile(lambda frame: not is_users(frame.file), frames)


def _is_jitted_by_jax(equation: Equation) -> bool:
    """Returns whether an equation calls a function that JAX has jitted itself."""
    jaxpr = equation.params.get("jaxpr")
    # A closed jaxpr holds the one that has the information.
    open_jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    info = getattr(open_jaxpr, "debug_info", None)
    file = getattr(info, "func_filename", None)
    return file is not None and not is_users(file)
