"""Reads the calls of control flow that an error passed through from its traceback.

As long as JAX keeps its own frames in a traceback, they hold what a note needs: the call,
its arguments, and the jaxprs of the traced functions. This file knows calls by the code of
JAX's and Equinox's public functions, arguments by their public parameters, jaxprs and trees
by their type. Names of JAX's variables only decide between two values of one type: a
release that changes them may cost a note, and nothing else.
"""

import contextlib
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple

import jax
from jax import tree_util

from .._leaves.dtypes import is_array
from .._leaves.files import is_users
from .._leaves.functions import parameters, required
from .._leaves.types import Function, Jaxpr, Kwargs, Leaf, PyTree, Step
from .._program.source import expression

_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
_NAMES = ("scan", "while_loop", "fori_loop", "cond", "switch")


class Call(NamedTuple):
    """One call of control flow.

    Attributes:
        name: of the function, such as "scan".
        arguments: by the names of its parameters, except those that it has deleted.
        frames: its frame and those inside it.
        is_equinox: whether it is Equinox's function and not JAX's.
        caller: the innermost frame outside JAX and Equinox that led to it, if there is one.
        outer: the frames between the two.
    """

    name: str
    arguments: Kwargs
    frames: Sequence[FrameType]
    is_equinox: bool
    caller: FrameType | None
    outer: Sequence[FrameType] = ()

    @property
    def caller_file(self) -> str:
        """The file of the caller."""
        return self.caller.f_code.co_filename if self.caller is not None else ""

    @property
    def operands(self) -> tuple[PyTree, ...]:
        """The arguments of the branches of a `cond` or `switch`."""
        given = tuple(self.arguments.get("operands") or ())
        if given or "operand" not in self.arguments:
            return given
        one = self.arguments["operand"]  # its deprecated name; None is one, too
        is_given = all(map(is_array, tree_util.tree_leaves(one)))
        return (one,) if is_given else ()

    def given(self) -> tuple[str, Kwargs]:
        """The public function of JAX that contains the call, and its arguments.

        Of those with a default only what the caller names. They are empty if it is not
        found.
        """
        for frame in self.outer:
            name = frame.f_code.co_name
            function = _public(frame.f_globals.get("__name__", ""), name)
            if function is not None and getattr(function, "__code__", None) is frame.f_code:
                written = self.caller and expression(
                    self.caller.f_code, self.caller.f_lasti
                )
                named = [each.arg for each in getattr(written, "keywords", ())]
                names = parameters(function).keys() & {*required(function), *named}
                given = frame.f_locals.items()
                return name, {each: value for each, value in given if each in names}
        return "", {}

    def variable_of(self, leaf: Leaf) -> str:
        """The caller's variable that holds a leaf, and the path in it; empty if none."""
        variables = self.caller.f_locals.items() if self.caller is not None else ()
        found = [(name, path_of(leaf, value)) for name, value in variables]
        return min(
            (name + path for name, path in found if path is not None), default="", key=len
        )

    def jaxprs(self) -> Iterator[tuple[str, Jaxpr]]:
        """The jaxprs in JAX's variables, each with the name of the variable."""
        for name, items in self._variables():
            yield from ((name, each) for each in items if _is_jaxpr(each))

    def lists_of_jaxprs(self) -> Iterator[Sequence[Jaxpr]]:
        """The lists of jaxprs in JAX's variables."""
        return (
            items for _, items in self._variables() if items and all(map(_is_jaxpr, items))
        )

    def tree(self, leaves: int) -> PyTree:
        """A result with so many leaves, as a structure in JAX's variables has it."""
        found = [
            (name, tree)
            for name, items in self._variables()
            for each in items
            if _is_from_jax(each)
            if isinstance(tree := getattr(each, "tree", each), tree_util.PyTreeDef)
            if tree.num_leaves == leaves
        ]
        for _, tree in sorted(found, key=lambda pair: "out" not in pair[0]):
            with contextlib.suppress(Exception):  # a node that rejects numbers as leaves
                return tree_util.tree_unflatten(tree, range(leaves))
        return list(range(leaves))

    def _variables(self) -> Iterator[tuple[str, Sequence[PyTree]]]:
        """JAX's variables, each as the items of a list."""
        for frame in self.frames:
            if not is_users(frame.f_code.co_filename):
                for name, value in list(frame.f_locals.items()):
                    is_many = type(value) in (list, tuple)
                    yield name, value if is_many else (value,)


def calls(error: BaseException) -> list[Call]:
    """The calls of control flow that raised an error, outside in.

    Only JAX and Equinox may stand inside them: an error that the body of a `scan` raised
    does not come from the `scan`.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    first = len(frames)
    while first and not _is_others(frames[first - 1]):
        first -= 1
    known = list(_functions())
    caller = frames[first - 1] if first else None
    return [
        Call(name, arguments, frames[number:], is_equinox, caller, frames[first:number])
        for number in range(first, len(frames))
        for name, function, is_equinox in known
        if (arguments := _arguments(function, frames[number])) is not None
    ]


def without_jax(trace: TracebackType | None) -> TracebackType | None:
    """A traceback as JAX filters it: without its frames, if it passed a boundary of JAX."""
    frames = list(traceback.walk_tb(trace))
    boundary = getattr(jax.lax.scan, "__code__", None)
    if not any(frame.f_code is boundary for frame, _ in frames):
        return trace
    return without(trace, _JAX)


def without(trace: TracebackType | None, folder: str) -> TracebackType | None:
    """A traceback without the frames of the files in a folder."""
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(folder):
            kept.append(trace)
        trace = trace.tb_next
    for old in reversed(kept):
        trace = TracebackType(trace, old.tb_frame, old.tb_lasti, old.tb_lineno)
    return trace


def is_of_jax(function: Step) -> bool:
    """Whether JAX itself wrote a function."""
    code = code_of(function)
    return code is not None and code.co_filename.startswith(_JAX)


def code_of(function: Step) -> CodeType | None:
    """The code of a function, inside of partial ones and of wrappers."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(inspect.unwrap(function), "__code__", None)


def _public(module: str, name: str) -> Function | None:
    """The function that JAX has under a public name; None if it has none."""
    parts = [part for part in module.split(".") if part != "_src"]
    for end in range(len(parts), 0, -1):
        public = sys.modules.get(".".join(parts[:end]))
        function = vars(public).get(name) if public else None
        if callable(function):
            return inspect.unwrap(function)
    return None


def _functions() -> Iterator[tuple[str, Function | None, bool]]:
    """The public functions of control flow: name, function, whether it is Equinox's."""
    for name in _NAMES:
        yield name, getattr(jax.lax, name), False
    loops = sys.modules.get("equinox.internal")
    for name in _NAMES[:2]:
        yield name, getattr(loops, name, None), True


def _arguments(function: Function | None, frame: FrameType) -> Kwargs | None:
    """The arguments of a function, if a frame is one of its frames; else None."""
    code = frame.f_code
    if code is not getattr(function, "__code__", None) or function is None:
        return None
    values = dict(frame.f_locals)
    inner = getattr(function, "__wrapped__", None)
    # All functions of one wrapper share its code. Their variables hold what they wrap.
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


def _is_from_jax(value: object) -> bool:
    return type(value).__module__.partition(".")[0] in ("jax", "jaxlib")


def _is_jaxpr(value: object) -> bool:
    inside = getattr(value, "jaxpr", value) if _is_from_jax(value) else None
    return all(hasattr(inside, name) for name in ("eqns", "invars", "outvars"))


def path_of(leaf: Leaf, tree: PyTree) -> str | None:
    """The path of a leaf in a tree; None if the tree does not hold it."""
    try:
        pairs = tree_util.tree_flatten_with_path(tree)[0]
    except Exception:  # keys that cannot be ordered
        return None
    return next((tree_util.keystr(path) for path, each in pairs if each is leaf), None)
