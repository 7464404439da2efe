"""The calls of control flow that an error passed through, read from its traceback.

While JAX does not take its own frames out of a traceback, they hold what a note needs: the
call, its arguments, and the jaxprs of the functions that were traced. Calls are known by
the code of JAX's and Equinox's public functions and read by their public parameters, jaxprs
and trees by their type. The names of JAX's variables decide only where two of one type
might be meant; a release that has others may cost a note, and nothing else.
"""

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, SimpleNamespace, TracebackType
from typing import Any, NamedTuple

import jax
from jax import tree_util

from .._leaves.dtypes import is_array
from .._leaves.files import is_users
from .._leaves.types import Jaxpr, PyTree

_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
NAMES = ("scan", "while_loop", "fori_loop", "cond", "switch")


class Call(NamedTuple):
    """One call of control flow.

    Attributes:
        name: of the function that was called, "scan" say.
        arguments: what it was given, by the names of its parameters; without those that
            it has let go of since.
        frames: its frame and those inside of it.
        is_equinox: whether it is Equinox's function and not JAX's.
        caller: the frame that led to it, of neither JAX nor Equinox; None if all are.
    """

    name: str
    arguments: Mapping[str, Any]
    frames: Sequence[FrameType]
    is_equinox: bool
    caller: FrameType | None

    @property
    def caller_file(self) -> str:
        """The file that led to it."""
        return self.caller.f_code.co_filename if self.caller is not None else ""

    @property
    def operands(self) -> tuple[PyTree, ...]:
        """What the branches of a `cond` or `switch` are given."""
        given = tuple(self.arguments.get("operands") or ())
        one = self.arguments.get("operand")  # as it was called once
        is_given = not given and all(map(is_array, tree_util.tree_leaves(one)))
        return (one,) if is_given and one is not None else given

    def jaxprs(self) -> Iterator[tuple[str, Any]]:
        """The closed jaxprs that JAX holds, each with the name of the variable."""
        for name, value in self._held():
            if _is_jaxpr(value):
                yield name, _closed(value)

    def lists_of_jaxprs(self) -> Iterator[list[Any]]:
        """The lists of them."""
        for frame in self._own():
            for value in list(frame.f_locals.values()):
                if type(value) in (list, tuple) and value and all(map(_is_jaxpr, value)):
                    yield list(map(_closed, value))

    def trees(self, leaves: int) -> list[Any]:
        """The structures of so many leaves that JAX holds, those of results first."""
        found = [
            (name, tree)
            for name, value in self._held()
            if (tree := _structure(value)) is not None and tree.num_leaves == leaves
        ]
        return [tree for _, tree in sorted(found, key=lambda pair: "out" not in pair[0])]

    def _held(self) -> Iterator[tuple[str, Any]]:
        for frame in self._own():
            for name, value in list(frame.f_locals.items()):
                yield name, value
                if type(value) in (list, tuple):
                    for item in value:
                        yield name, item

    def _own(self) -> Iterator[FrameType]:
        return (frame for frame in self.frames if not is_users(frame.f_code.co_filename))


def calls(error: BaseException) -> list[Call]:
    """The calls of control flow that an error comes from, from the outside in.

    That is those with nothing inside of them but JAX and Equinox: an error that passed
    through the function which was handed to a `scan` is none of that `scan`.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    first = len(frames)
    while first and not _is_others(frames[first - 1]):
        first -= 1
    known = list(_functions())
    caller = frames[first - 1] if first else None
    return [
        Call(name, arguments, frames[number:], is_equinox, caller)
        for number in range(first, len(frames))
        for name, function, is_equinox in known
        if (arguments := _arguments(function, frames[number])) is not None
    ]


def with_inputs(closed: Jaxpr, last: int) -> Any:
    """A jaxpr with its last so many inputs alone; the others are constants then."""
    inside = closed.jaxpr
    names = SimpleNamespace(
        invars=inside.invars[max(len(inside.invars) - last, 0) :],
        eqns=inside.eqns,
        outvars=inside.outvars,
    )
    ins, outs = ([var.aval for var in ends] for ends in (names.invars, names.outvars))
    return SimpleNamespace(jaxpr=names, in_avals=ins, out_avals=outs)


def without_jax(trace: TracebackType | None) -> TracebackType | None:
    """A traceback as JAX leaves it: with its frames taken out where it sets a boundary."""
    frames = list(traceback.walk_tb(trace))
    boundary = getattr(jax.lax.scan, "__code__", None)
    if not any(frame.f_code is boundary for frame, _ in frames):
        return trace
    return without(trace, _JAX)


def without(trace: TracebackType | None, folder: str) -> TracebackType | None:
    """A traceback without the frames of what is in a folder."""
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(folder):
            kept.append(trace)
        trace = trace.tb_next
    for old in reversed(kept):
        trace = TracebackType(trace, old.tb_frame, old.tb_lasti, old.tb_lineno)
    return trace


def _functions() -> Iterator[tuple[str, Any, bool]]:
    for name in NAMES:
        yield name, getattr(jax.lax, name), False
    loops = sys.modules.get("equinox.internal")
    for name in NAMES[:2]:
        yield name, getattr(loops, name, None), True


def _arguments(function: Callable[..., Any] | None, frame: FrameType) -> Any:
    """What a function was given, if the frame is one of it, else None."""
    code = frame.f_code
    if code is not getattr(function, "__code__", None) or function is None:
        return None
    values = dict(frame.f_locals)
    inner = getattr(function, "__wrapped__", None)
    # All that are wrapped alike have one code; what they wrap is among their variables.
    if inner is not None and not any(value is inner for value in values.values()):
        return None
    positional = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    named = {name: values[name] for name in names[:positional] if name in values}
    if not code.co_flags & inspect.CO_VARARGS:
        return named
    given = values.get(names[positional], ())
    keywords = {}
    if code.co_flags & inspect.CO_VARKEYWORDS:
        keywords = values.get(names[positional + 1], {})
    if inner is None:
        return named | {names[positional]: given} | keywords
    try:
        return inspect.signature(function).bind_partial(*given, **keywords).arguments
    except TypeError:
        return None


def _is_others(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    return is_users(frame.f_code.co_filename) and module.partition(".")[0] != "equinox"


def _is_from_jax(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in ("jax", "jaxlib")


def _is_jaxpr(value: Any) -> bool:
    if not _is_from_jax(value):
        return False
    inside = getattr(value, "jaxpr", value)
    return all(hasattr(inside, name) for name in ("eqns", "invars", "outvars"))


def _closed(jaxpr: Jaxpr) -> Any:
    return jaxpr if hasattr(jaxpr, "jaxpr") else SimpleNamespace(jaxpr=jaxpr)


def _structure(value: Any) -> Any:
    if _is_from_jax(value):
        value = getattr(value, "tree", value)
    return value if isinstance(value, tree_util.PyTreeDef) else None
