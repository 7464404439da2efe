"""The source lines of equations. The one file that reads JAX's source information.

JAX keeps a traceback for every equation, `eqn.source_info.traceback`. Any release may
change it; without it audits still work and name no lines.
"""

import ast
import contextlib
import dataclasses
import functools
import itertools
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from jax.extend import source_info_util

from .._leaves.casts import Cast, cast_of
from .._leaves.files import is_installed, is_ours, is_users, short_path
from .._leaves.types import Equation
from .source import expression, line_at

# JAX traces a jaxpr inside these. Frames further out belong to its first caller: JAX caches
# traces, so that may be somebody else.
_TRACING = re.compile(r"(.*\.)?trace_to_(sub)?jaxpr\w*")
# Functions and the instructions in them that call the next; two functions on a line may
# call at the same instruction.
Chain = tuple[tuple[CodeType, int], ...]


@dataclasses.dataclass(frozen=True)
class Origin:
    """A line of source.

    Attributes:
        file: its file, as Python knows it.
        line: its number.
        function: the function that contains it.
        code: its text, without indentation; empty if the file cannot be read.
        called_from: for a line of an installed package, the innermost line of the user's
            own code that led there; None if there is none.
    """

    file: str
    line: int
    function: str
    code: str
    called_from: "Origin | None" = None
    # The frames that led to it, inside out. Reports leave them out.
    _through: "tuple[_Frame, ...]" = dataclasses.field(
        default=(), repr=False, compare=False
    )

    def __str__(self) -> str:
        return f"{short_path(self.file)}:{self.line}"

    @property
    def users(self) -> "Origin":
        """The line that the user can edit: this one, or the one that called the package."""
        return self.called_from or self

    @property
    def is_of_optimizer(self) -> bool:
        """Whether it runs inside the `update` of an Optax optimizer, not just a helper."""
        return is_update(self._through)

    @property
    def outermost(self) -> "_Frame | None":
        """The outermost of the user's own functions that led to it."""
        own = [f for f in self._through if is_users(f.file) and not is_installed(f.file)]
        return own[-1] if own else None

    @property
    def place(self) -> str:
        """The line as reports print it, the user's own line first."""
        return f"{self.users} (in {self})" if self.called_from else str(self)


def places(
    origin: Origin | None, cause: Origin | None, begun: Origin | None = None
) -> tuple[str, str, str]:
    """The lines of a promotion, of what forced it, and of the first value, as printed."""
    forced = f"forced by {cause.place}" if cause else ""
    first = f"begins at {begun.place}" if begun else ""
    return origin.place if origin else "", forced, first


def origin_of(stack: Sequence[Equation]) -> Origin | None:
    """The innermost line outside JAX and dtypeguard that an equation comes from.

    Args:
        stack: the equation and those that contain it, inside out. JAX's own functions are
            skipped in favor of their callers.
    """
    return _origin_of_frames(frame for frame in _frames(stack) if is_users(frame.file))


def calls_of(stack: Sequence[Equation]) -> Chain:
    """The calls that lead to the line of `origin_of`, inside out; () if not known.

    They tell apart the calls on a line, and those of a function that contains it.
    """
    for equation in stack:
        try:
            codes, instructions = equation.source_info.traceback.raw_frames()
        except AttributeError:  # there is no traceback, or this release keeps it elsewhere
            return ()
        if found := _calls(zip(codes, instructions)):
            return found
    return ()


def calls_of_frame(frame: FrameType) -> Chain:
    """The calls that lead to the current line of a running function, inside out."""
    frames = itertools.chain([frame], callers(frame))
    return _calls((each.f_code, each.f_lasti) for each in frames)


def _calls(frames: Iterable[tuple[CodeType, int]]) -> Chain:
    found: list[tuple[CodeType, int]] = []
    for code, instruction in frames:
        if is_users(code.co_filename):
            found.append((code, instruction))
        elif _TRACING.fullmatch(code.co_qualname):
            break
    return tuple(found)


def passes(equation: Equation, code: CodeType) -> bool:
    """Whether an equation was traced while a function ran."""
    file, lines = code.co_filename, [line for *_, line in code.co_lines() if line]
    return any(
        frame.file == file and min(lines) <= frame.line <= max(lines)
        for frame in _own_frames(equation)
    )


def origin_of_frame(
    frame: FrameType, line: int | None = None, within: FrameType | None = None
) -> Origin:
    """The current line of a running function, or another line of it.

    Args:
        frame: of the function.
        line: the current line by default.
        within: a caller of it; the program that is traced starts there.
    """
    first = frame_of(frame, line)
    inner = itertools.takewhile(lambda each: each is not within, callers(frame))
    outer = (each for each in inner if is_users(each.f_code.co_filename))
    found = _origin_of_frames(itertools.chain([first], map(frame_of, outer)))
    assert found is not None
    return found


def origin_of_error(error: BaseException) -> Origin | None:
    """The innermost line outside JAX and dtypeguard that an error passed through."""
    frames = [frame_of(*pair) for pair in traceback.walk_tb(error.__traceback__)]
    return _origin_of_frames(each for each in reversed(frames) if is_users(each.file))


def _origin_of_frames(frames: Iterable["_Frame"]) -> Origin | None:
    """The line of the innermost of some frames, given inside out."""
    through = tuple(frames)
    if not through:
        return None
    first, *outer = through
    own = [frame for frame in outer if not is_installed(frame.file)]
    users = _origin_of_frames(own[:1]) if is_installed(first.file) else None
    return Origin(*first, line_at(first.file, first.line), users, through)


def origin_at(file: str, line: int, function: str) -> Origin:
    """A line of which nothing but its function is known."""
    return Origin(file, line, function, line_at(file, line))


def is_update(frames: Iterable["_Frame"]) -> bool:
    """Whether a call passes through the `update` of an Optax optimizer."""
    return any(
        short_path(frame.file).startswith("optax" + os.sep)
        and frame.function.rpartition(".")[2] in ("update", "update_fn")
        for frame in frames
    )


def callers(frame: FrameType) -> Iterator[FrameType]:
    """The callers of a frame, inside out."""
    while (caller := frame.f_back) is not None:
        frame = caller
        yield frame


def frame_of(frame: FrameType, line: int | None = None) -> "_Frame":
    """A running function at its current line, or another."""
    code = frame.f_code
    line = frame.f_lineno if line is None else line
    return _Frame(code.co_filename, line or 0, code.co_qualname)


def cast_of_ours(stack: Sequence[Equation]) -> Cast | None:
    """The cast of dtypeguard that an equation belongs to; None if it is the user's."""
    for equation in stack:
        try:
            scopes = [scope.name for scope in equation.source_info.name_stack.stack]
        except AttributeError:  # this release keeps them elsewhere
            return None
        for found in map(cast_of, reversed(scopes)):
            if found is not None:
                return found
    return None


_CASTS = ("astype", "_astype", "asarray", "convert_element_type", "_ScalarMeta.__call__")


def is_explicit(stack: Sequence[Equation]) -> bool:
    """Whether the user asked for a conversion, with `astype`, `asarray` or the like."""
    called = [frame.function for frame in _inside_call(stack[:1])]
    # The function that the user called comes last, possibly behind some wrappers of JAX.
    return any(name in _CASTS for name in called[-6:]) and not any(
        "promote" in name for name in called
    )


def is_filled(stack: Sequence[Equation]) -> bool:
    """Whether `ones`, `zeros` or `full` makes an array, in a dtype of its own."""
    called = [frame.function for frame in _inside_call(stack)]
    is_like = any(name.endswith("_like") for name in called)
    return not is_like and not _FILLS.isdisjoint(called)


_FILLS = frozenset(("ones", "zeros", "full", "empty"))


def is_following(stack: Sequence[Equation]) -> bool:
    """Whether a cast takes the dtype of another value, as `x.astype(y.dtype)` does."""
    origin = origin_of(stack)
    if origin is None or is_of_ours(stack):
        return False
    calls = (expression(*called) for called in calls_of(stack)[:1])
    is_of_value = any(isinstance(call, ast.Call) and _follows(call) for call in calls)
    # Flax promotes by casts, in a function of this name.
    return is_of_value or "promote" in origin.function


def _follows(call: ast.Call) -> bool:
    """Whether a call is `x.astype(y.dtype)`."""
    if not ast.unparse(call.func).endswith(".astype"):
        return False
    given = (*call.args, *(each.value for each in call.keywords))
    return any(isinstance(each, ast.Attribute) and each.attr == "dtype" for each in given)


def is_of_ours(stack: Sequence[Equation]) -> bool:
    """Whether dtypeguard made an equation, for the line of the user's that called it."""
    return any(is_ours(frame.file) for frame in _inside_call(stack))


def is_of_users(stack: Sequence[Equation]) -> bool:
    """Whether a line outside JAX made an equation itself, and no jitted function of JAX."""
    return any(is_users(frame.file) for frame in _frames(stack[:1]))


def is_backward(stack: Sequence[Equation]) -> bool:
    """Whether an equation belongs to the backward pass of a gradient.

    What `jax.checkpoint` computes again there belongs to the forward pass.
    """
    names = [str(getattr(each.source_info, "name_stack", "")) for each in stack]
    is_repeated = any("rematted" in name for name in names)
    return any("transpose(" in name for name in names) and not is_repeated


def is_displaced(stack: Sequence[Equation]) -> bool:
    """Whether JAX gives an equation the line of another one.

    What the rules of a `custom_vjp` and the like compute has the line of the call that they
    belong to: no line of the call itself, which JAX replaces by what they compute.
    """
    return _is_of_rule(_frames(stack))


def _is_of_rule(frames: Iterable["_Frame"]) -> bool:
    return any(
        os.path.basename(frame.file) in _WITH_RULES and frame.function.endswith("__call__")
        for frame in _until_users(frames)
    )


_WITH_RULES = "custom_derivatives.py", "custom_batching.py"


class OwnLines:
    """While entered, functions that ask for it give their equations their own lines.

    A rule of a `custom_vjp` runs in a context of JAX's that has the line of the call.
    """

    def __enter__(self):
        self._outside = _entered()
        return self

    def __exit__(self, *exception):
        self._outside.close()

    def start(self) -> contextlib.ExitStack:
        """Goes from the context of a rule to the one outside; `close` goes back."""
        scopes = source_info_util.current_name_stack()
        inside = _entered()
        self._outside.close()
        self._outside = _entered(name_stack=scopes)
        return inside


def _entered(**options: Any) -> contextlib.ExitStack:
    """A context in which equations have the lines that they have anyway."""
    entered = contextlib.ExitStack()
    entered.enter_context(source_info_util.user_context(None, **options))
    return entered


def is_of_jax_nn(stack: Sequence[Equation]) -> bool:
    """Whether a function of `jax.nn` computes an equation for the user's line."""
    return any(f"{os.sep}nn{os.sep}" in frame.file for frame in _inside_call(stack))


class _Frame(NamedTuple):
    file: str
    line: int
    function: str


def _frames(stack: Sequence[Equation]) -> Iterator[_Frame]:
    """The frames of an equation and of those that contain it, inside out."""
    for number, equation in enumerate(stack):
        frames = _own_frames(equation)
        # What JAX kept of a function of its own may be from another user's rule.
        is_kept = _is_of_rule(frames) and any(map(_is_jitted_by_jax, stack[number + 1 :]))
        yield from () if is_kept else frames


def _inside_call(stack: Sequence[Equation]) -> Iterator[_Frame]:
    """The frames inside the innermost line of the user's."""
    return _until_users(_frames(stack))


def _until_users(frames: Iterable[_Frame]) -> Iterator[_Frame]:
    return itertools.takewhile(lambda frame: not is_users(frame.file), frames)


def _own_frames(equation: Equation) -> Iterable[_Frame]:
    """The frames of an equation inside its own jaxpr, inside out."""
    try:
        return _frames_of(equation.source_info.traceback)
    except (AttributeError, TypeError):  # there is none, or this release has it elsewhere
        return ()


def _is_jitted_by_jax(equation: Equation) -> bool:
    """Whether an equation calls a function that JAX has jitted itself."""
    jaxpr = equation.params.get("jaxpr")
    about = getattr(getattr(jaxpr, "jaxpr", jaxpr), "debug_info", None)
    return not is_users(getattr(about, "func_filename", None) or "")


# Equations on a line that runs in a loop have equal tracebacks.
@functools.lru_cache(1000)
def _frames_of(called: Any) -> tuple[_Frame, ...]:
    frames = [_Frame(x.file_name, x.line_num, x.function_name) for x in called.frames]
    is_inside = lambda x: is_users(x.file) or not _TRACING.fullmatch(x.function)
    return tuple(itertools.takewhile(is_inside, frames))
