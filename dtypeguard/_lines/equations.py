"""The source lines of equations. The one file that reads JAX's source information.

JAX keeps a traceback for every equation, `eqn.source_info.traceback`. Any release may
change it; without it audits still work and name no lines.
"""

import ast
import contextlib
import functools
import inspect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import jax
from jax.custom_batching import custom_vmap
from jax.extend import source_info_util

from .._leaves.casts import Cast
from .._leaves.dtypes import bits
from .._leaves.internals import (
    CASTS,
    COMMON_DTYPE,
    FILLS,
    LIKE,
    MAKERS,
    PROMOTING,
    REPEATED,
    REPEATING,
    TRACING,
    TRANSPOSED,
)
from .._leaves.types import Equation
from .._source.assignments import assigned_at
from .._source.files import is_ours, is_users
from .._source.origin import Frame, Origin, callers, origin_of_frames
from .._source.syntax import expression

# Functions and the instructions in them that call the next; two functions on a line may
# call at the same instruction.
Chain = tuple[tuple[CodeType, int], ...]


def origin_of(stack: Sequence[Equation]) -> Origin | None:
    """The innermost line outside JAX and dtypeguard that an equation comes from.

    Args:
        stack: the equation and those that contain it, inside out. JAX's own functions are
            skipped in favor of their callers.
    """
    return origin_of_frames(frame for frame in _frames(stack) if is_users(frame.file))


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


def calls_by_jaxpr(stack: Sequence[Equation]) -> Iterator[Chain]:
    """The calls of users' functions and packages behind each equation of a stack."""
    for number, equation in enumerate(stack):
        try:
            calls, is_rule = _calls_behind(equation.source_info.traceback)
        except (AttributeError, TypeError):  # as above
            continue
        # As in `_frames`.
        if not (is_rule and any(map(_is_jitted_by_jax, stack[number + 1 :]))):
            yield calls


# As many as a program has calls: each is asked for once an equation.
@functools.lru_cache(10_000)
def _calls_behind(called: Any) -> tuple[Chain, bool]:
    """The calls in a traceback, and whether they lead to a rule of a derivative."""
    return _calls(zip(*called.raw_frames())), _is_of_rule(_frames_of(called))


def calls_of_frame(frame: FrameType) -> Chain:
    """The calls that lead to the current line of a running function, inside out."""
    frames = itertools.chain([frame], callers(frame))
    return _calls((each.f_code, each.f_lasti) for each in frames)


def _calls(frames: Iterable[tuple[CodeType, int]]) -> Chain:
    found: list[tuple[CodeType, int]] = []
    for code, instruction in frames:
        if is_users(code.co_filename):
            found.append((code, instruction))
        elif TRACING.are_in(code.co_qualname):
            break
    return tuple(found)


def passes(equation: Equation, code: CodeType) -> bool:
    """Whether an equation was traced while a function ran."""
    return any(frame.is_in(code) for frame in _own_frames(equation))


def cast_of_ours(stack: Sequence[Equation]) -> Cast | None:
    """The cast of dtypeguard that an equation belongs to; None if it is the user's."""
    names = (scope.name for each in stack for scope in reversed(_scopes(each)))
    return next((name for name in names if isinstance(name, Cast)), None)


def is_explicit(stack: Sequence[Equation]) -> bool:
    """Whether the user asked for a conversion, with `astype`, `asarray` or the like."""
    called = [frame.function for frame in _inside_call(stack[:1])]
    # The function that the user called comes last, possibly behind some wrappers of JAX.
    return not CASTS.isdisjoint(called[-6:]) and not any(map(PROMOTING.are_in, called))


def is_filled(stack: Sequence[Equation]) -> bool:
    """Whether `ones`, `zeros` or `full` makes an array, in a dtype of its own."""
    called = [frame.function for frame in _inside_call(stack)]
    return not FILLS.isdisjoint(called) and not any(map(LIKE.are_in, called))


def is_like(stack: Sequence[Equation]) -> bool:
    """Whether `zeros_like` or one of its kind makes an array, in the dtype of another."""
    return any(LIKE.are_in(frame.function) for frame in _inside_call(stack))


def takes_dtype(stack: Sequence[Equation]) -> bool:
    """Whether a function of JAX makes something for the user's line in any dtype."""
    called = list(_inside_call(stack))[-6:]
    return any(each.function in MAKERS or each.file == _JAX_RANDOM for each in called)


def is_following(stack: Sequence[Equation]) -> bool:
    """Whether a cast takes the dtype of another value, as `x.astype(y.dtype)` does."""
    if is_of_ours(stack):
        return False
    if _is_to_common_dtype(stack):
        given, made = stack[0].invars[0].aval.dtype, stack[0].outvars[0].aval.dtype
        return bits(given) <= bits(made)  # what is common to values is not narrower
    return names_another_dtype(stack)


def _is_to_common_dtype(stack: Sequence[Equation]) -> bool:
    calls = calls_of(stack)[:2]  # a function, and the one that it may be written in
    return any(code is known for code, _ in calls for known in COMMON_DTYPE.codes())


def names_another_dtype(stack: Sequence[Equation]) -> bool:
    """Whether a cast is written as `x.astype(y.dtype)`."""
    calls = () if _is_to_common_dtype(stack) else calls_of(stack)[:1]
    written = ((expression(*called), called[0].co_filename) for called in calls)
    return any(
        isinstance(call, ast.Call) and _follows(call, file) for call, file in written
    )


def _follows(call: ast.Call, file: str) -> bool:
    """Whether a call is `x.astype(y.dtype)`, or `asarray(x, dtype)` with such a dtype."""
    if _last_name(call.func) not in ("astype", "asarray", "convert_element_type"):
        return False
    for given in (*call.args, *(each.value for each in call.keywords)):
        if isinstance(given, ast.Name):  # what was assigned to it, if that is certain
            found = assigned_at(file, given.id, call.lineno)
            given = found[0].value if len(found) == 1 else None
        if isinstance(given, ast.Attribute) and given.attr == "dtype":
            return True
        if isinstance(given, ast.Call) and _last_name(given.func) in _OF_VALUES:
            return True
    return False


# Functions of JAX and Flax that return the dtype that arrays have in common.
_OF_VALUES = ("result_type", "promote_types", "canonicalize_dtype")


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


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
    scopes = list(map(_scopes, stack))
    is_repeated = any(
        outer.primitive.name in REPEATING and inner and inner[0].name == REPEATED
        for inner, outer in zip(scopes, stack[1:])
    )
    return is_transposed(stack) and not is_repeated


def is_transposed(stack: Sequence[Equation]) -> bool:
    """Whether an equation runs in the backward pass of a gradient.

    What `jax.checkpoint` computes again does.
    """
    every = itertools.chain.from_iterable(map(_scopes, stack))
    return any(type(x).__name__ == "Transform" and x.name == TRANSPOSED for x in every)


def scope_of(stack: Sequence[Equation]) -> tuple[str, ...]:
    """The scopes of `jax.named_scope` around an equation, outside in.

    Flax and Haiku name the modules so, and `einsum` what it computes, which is none.
    """
    scopes = itertools.chain.from_iterable(map(_scopes, reversed(stack)))
    names = [x.name for x in scopes if type(x).__name__ == "Scope"]
    others = lambda name: isinstance(name, Cast) or name == REPEATED or "->" in name
    return tuple(name for name in names if not others(name))


def is_displaced(stack: Sequence[Equation]) -> bool:
    """Whether JAX gives an equation the line of another one.

    What the rules of a `custom_vjp` and the like compute has the line of the call that they
    belong to: no line of the call itself, which JAX replaces by what they compute.
    """
    return _is_of_rule(_frames(stack))


def _is_of_rule(frames: Iterable["Frame"]) -> bool:
    return any(each.is_in(code) for each in _until_users(frames) for code in _WITH_RULES)


_WITH_RULES = tuple(
    inspect.unwrap(each.__call__).__code__
    for each in (jax.custom_jvp, jax.custom_vjp, custom_vmap)
)


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
    return any(frame.file == _JAX_NN for frame in _inside_call(stack))


def is_of_sampler(stack: Sequence[Equation]) -> bool:
    """Whether a function of `jax.random` computes an equation for the user's line."""
    return any(frame.file == _JAX_RANDOM for frame in _inside_call(stack))


_JAX_RANDOM = inspect.unwrap(jax.random.normal).__code__.co_filename
_JAX_NN = inspect.unwrap(jax.nn.softmax).__code__.co_filename


def _scopes(equation: Equation) -> Sequence[Any]:
    """What is in the name stack of an equation: scopes, and transformations of JAX."""
    return getattr(getattr(equation.source_info, "name_stack", None), "stack", ())


def _frames(stack: Sequence[Equation]) -> Iterator[Frame]:
    """The frames of an equation and of those that contain it, inside out."""
    for number, equation in enumerate(stack):
        frames = _own_frames(equation)
        # What JAX kept of a function of its own may be from another user's rule.
        is_kept = _is_of_rule(frames) and any(map(_is_jitted_by_jax, stack[number + 1 :]))
        yield from () if is_kept else frames


def _inside_call(stack: Sequence[Equation]) -> Iterator[Frame]:
    """The frames inside the innermost line of the user's."""
    return _until_users(_frames(stack))


def _until_users(frames: Iterable[Frame]) -> Iterator[Frame]:
    return itertools.takewhile(lambda frame: not is_users(frame.file), frames)


def _own_frames(equation: Equation) -> Iterable[Frame]:
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
def _frames_of(called: Any) -> tuple[Frame, ...]:
    frames = [Frame(x.file_name, x.line_num, x.function_name) for x in called.frames]
    # Frames further out belong to the first caller of what is traced: JAX caches traces, so
    # that may be somebody else.
    is_inside = lambda x: is_users(x.file) or not TRACING.are_in(x.function)
    return tuple(itertools.takewhile(is_inside, frames))
