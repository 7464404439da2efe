"""The tracebacks of equations. The one file that reads JAX's source information.

JAX keeps a traceback for every equation, `eqn.source_info.traceback`. Any release may
change it; without it audits still work and name no lines.
"""

import functools
import inspect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import Any

import jax
from jax.custom_batching import custom_vmap

from .._leaves.internals import TRACING
from .._leaves.types import Equation, Jaxpr, Leaf
from .._source.files import is_recorded, is_users
from .._source.origin import Frame, Origin, origin_at, origin_of_frames
from .._source.syntax import return_line

# Functions and the instructions in them that call the next; two functions on a line may
# call at the same instruction.
Chain = tuple[tuple[CodeType, int], ...]


def calls_by_jaxpr(stack: Sequence[Equation]) -> Iterator[Chain]:
    """The calls of users' functions and packages behind each equation of a stack."""
    return (calls for _, calls in _behind(stack))


def frames_of(stack: Sequence[Equation]) -> Iterator[Frame]:
    """The frames of an equation and of those that contain it, inside out."""
    return itertools.chain.from_iterable(frames for frames, _ in _behind(stack))


def _behind(stack: Sequence[Equation]) -> Iterator[tuple[Sequence[Frame], Chain]]:
    for number, equation in enumerate(stack):
        try:
            frames, calls, is_rule = _read_traceback(equation.source_info.traceback)
        except (AttributeError, TypeError):  # there is none, or it is kept elsewhere
            continue
        # What JAX kept of a function of its own may be from another user's rule.
        if not (is_rule and any(map(_is_jitted_by_jax, stack[number + 1 :]))):
            yield frames, calls


# As many as a program has calls: each is asked for once an equation. Equations on a line
# that runs in a loop have equal tracebacks.
@functools.lru_cache(10_000)
def _read_traceback(called: Any) -> tuple[Sequence[Frame], Chain, bool]:
    """The frames of a traceback, the calls in it, and whether a rule of a derivative is."""
    every = (Frame(x.file_name, x.line_num, x.function_name) for x in called.frames)
    # Frames further out belong to the first caller of what is traced: JAX caches traces, so
    # that may be somebody else.
    is_inside = lambda x: is_users(x.file) or not TRACING.are_in(x.function)
    frames = tuple(itertools.takewhile(is_inside, every))
    inner = until_users(frames)
    is_rule = any(each.is_in(code) for each in inner for code in _WITH_RULES)
    return frames, _calls(zip(*called.raw_frames())), is_rule


def line_of_tracer(tracer: Leaf) -> Origin | None:
    """The line that made a tracer, which JAX keeps with it; None if there is none.

    `jnp.asarray(0)` in a trace is a literal, of which no equation tells a line.
    """
    try:
        frames, *_ = _read_traceback(tracer._line_info.traceback)
    except (AttributeError, TypeError):  # no tracer, or it is kept elsewhere
        return None
    return origin_of_frames(frame for frame in frames if is_users(frame.file))


def line_of_return(jaxpr: Jaxpr) -> Origin | None:
    """The line on which a function that JAX traced returns, if it is the user's.

    Of several lines, or of a file that cannot be read, the first of the function.
    """
    traced = getattr(jaxpr, "debug_info", None)
    file = getattr(traced, "func_filename", None)
    line = getattr(traced, "func_lineno", None)
    if not file or not line or not is_recorded(file):
        return None
    return origin_at(file, return_line(file, line), getattr(traced, "func_name", ""))


def _calls(frames: Iterable[tuple[CodeType, int]]) -> Chain:
    found: list[tuple[CodeType, int]] = []
    for code, instruction in frames:
        if is_users(code.co_filename):
            found.append((code, instruction))
        elif TRACING.are_in(code.co_qualname):
            break
    return tuple(found)


_WITH_RULES = tuple(
    inspect.unwrap(each.__call__).__code__
    for each in (jax.custom_jvp, jax.custom_vjp, custom_vmap)
)


def scopes_of(equation: Equation) -> Sequence[Any]:
    """What is in the name stack of an equation: scopes, and transformations of JAX."""
    return getattr(getattr(equation.source_info, "name_stack", None), "stack", ())


def until_users(frames: Iterable[Frame]) -> Iterator[Frame]:
    return itertools.takewhile(lambda frame: not is_users(frame.file), frames)


def _is_jitted_by_jax(equation: Equation) -> bool:
    """Whether an equation calls a function that JAX has jitted itself."""
    jaxpr = equation.params.get("jaxpr")
    about = getattr(getattr(jaxpr, "jaxpr", jaxpr), "debug_info", None)
    return not is_users(getattr(about, "func_filename", None) or "")
