"""Reads the control flow that an error passed through from JAX's frames.

As long as JAX keeps its own frames in a traceback, they hold what a note needs: the call,
its arguments, and the jaxprs of the traced functions. This file knows calls by the code of
JAX's and Equinox's public functions, arguments by their public parameters, jaxprs and trees
by their type. Names of JAX's variables only decide between two values of one type: a
release that changes them may cost a note, and nothing else.
"""

import ast
import contextlib
import inspect
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import NamedTuple

import jax
from jax import tree_util

from .._carry.split import SplitTree
from .._leaves.dtypes import is_array
from .._leaves.types import Function, Jaxpr, Kwargs, Leaf, PyTree, PyTreeDef
from .._lines.body import Body
from .._lines.sites import Site
from .._source.files import is_installed, is_users
from .._source.inert import variables_of
from .._source.origin import Origin, callers, frame_of, is_update, origin_of_frame
from .kinds import KINDS, Kind
from .paths import users_path

JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


class ControlFlow(NamedTuple):
    """One call of control flow.

    Attributes:
        kind: of control flow: its function.
        file: of the caller, the innermost frame outside JAX and Equinox that led to it.
        line: of the caller; None if there is none.
        variables: of the caller.
        users_path: translates a path in Flax's own carry to the user's objects.
        is_update: whether the `update` of an Optax optimizer made the call.
        carry: the position of the carry in what the user gives to a package.
        bodies: of a loop its body; the branches, by the names of their parameters.
        first: what the carry of a loop and the arrays beside it are at first.
        compared: the carries that Equinox compares, before there is a jaxpr.
        condition: of a `while_loop`; None for others.
        trees: structures in JAX's variables, the likeliest of the result first.
        written: the call in the source of the caller; None if that cannot be read.
    """

    kind: Kind
    file: str
    line: Origin | None
    variables: Mapping[str, PyTree]
    users_path: Callable[[str], str]
    is_update: bool
    carry: int
    bodies: Mapping[str, Body] = {}
    first: Sequence[Leaf] = ()
    compared: Sequence[PyTree] = ()
    condition: Body | None = None
    trees: Sequence[PyTreeDef] = ()
    written: ast.AST | None = None

    @property
    def is_loop(self) -> bool:
        """Whether it has a carry, and no branches."""
        return self.kind.branches is None

    @property
    def is_of_jax(self) -> bool:
        """Whether JAX itself wrote the body of a loop."""
        codes = [body.code for body in self.bodies.values() if self.is_loop]
        return any(code and code.co_filename.startswith(JAX) for code in codes)


def users_sites(sites: Sequence[Site]) -> list[Site]:
    """The user's own lines that an error passed through, inside out."""
    return [site for site in reversed(sites) if not is_installed(site.file)]


def combines(frames: Sequence[FrameType]) -> bool:
    """Whether a loop in which JAX compares no types is among some frames."""
    functions = [kind.function for kind in KINDS if not kind.is_held]
    return any(_arguments(x, frame) is not None for x in functions for frame in frames)


def control_flow(frames: Sequence[FrameType]) -> Iterator[ControlFlow]:
    """The calls of control flow that raised an error, outside in.

    Only JAX and Equinox may stand inside them: an error that the body of a `scan` raised
    does not come from the `scan`.

    Args:
        frames: those that the error passed through, outside in.
    """
    first = len(frames)
    while first and not _is_others(frames[first - 1]):
        first -= 1
    caller = frames[first - 1] if first else None
    outer = [caller, *callers(caller)] if caller else []
    packages = [*itertools.takewhile(lambda x: is_installed(x.f_code.co_filename), outer)]
    known = [(kind, kind.function) for kind in KINDS]
    for number in range(first, len(frames)):
        for kind, function in known:
            arguments = _arguments(function, frames[number])
            if arguments is None:
                continue
            # Flax NNX lets the user choose it for a scan.
            chosen = getattr(arguments.get("f"), "input_carry_argnum", 0)
            call = ControlFlow(
                kind,
                caller.f_code.co_filename if caller else "",
                origin_of_frame(caller) if caller else None,
                dict(variables_of(caller)) if caller else {},
                users_path(caller, kind.carry),
                is_update([*map(frame_of, packages)]),
                chosen if chosen and type(chosen) is int else kind.carry,
            )
            if not call.is_loop:
                yield _with_branches(call, arguments, frames[number:])
            else:
                with contextlib.suppress(KeyError, AttributeError):  # no longer held
                    yield _with_body(call, arguments, frames[number:])


def _with_body(
    call: ControlFlow, given: Kwargs, frames: Sequence[FrameType]
) -> ControlFlow:
    """A loop with its body."""
    kind, last = call.kind, frames[-1].f_locals
    held = list(_jaxprs(frames))
    # The condition of a loop may stand next to its body.
    jaxprs = [jaxpr for _, jaxpr in sorted(held, key=lambda pair: "body" not in pair[0])]
    conditions = [jaxpr for name, jaxpr in held if "cond" in name][:1]
    if kind.is_equinox and kind.keyword not in given:  # its frame deletes them
        renamed = kind.renamed.items()
        given = {name: last[variable] for name, variable in renamed if variable in last}
    body = kind.body(given, jaxprs)
    condition = given.get(kind.condition)
    return call._replace(
        bodies={"body": body},
        first=SplitTree(body.inputs[kind.carry]).arrays
        + tree_util.tree_leaves(given.get("xs")),
        compared=[kind.compared(last.get(name)) for name in ("buffer_val", "buffer_val2")],
        condition=condition and Body(condition, body.inputs, jaxprs=conditions),
    )


def _with_branches(
    call: ControlFlow, given: Kwargs, frames: Sequence[FrameType]
) -> ControlFlow:
    """A call with its branches; without them if a jaxpr is missing."""
    functions = call.kind.branches(given) if call.kind.branches else {}
    lists = [items for _, items in _variables(frames) if all(map(_is_jaxpr, items))]
    lists = [jaxprs for jaxprs in lists if len(jaxprs) == len(functions)]
    if not lists:
        lists = [[jaxpr for _, jaxpr in _jaxprs(frames)][-len(functions) :]]
    operands = tuple(given.get("operands") or ())
    if not operands and "operand" in given:
        operand = given["operand"]  # its deprecated name; None is one, too
        is_given = all(map(is_array, tree_util.tree_leaves(operand)))
        operands = (operand,) if is_given else ()
    bodies = {
        name: Body(function, operands, jaxprs=[jaxpr])
        for (name, function), jaxpr in zip(functions.items(), lists[-1] if lists else ())
        if function
    }
    return call._replace(bodies=bodies, trees=_trees(frames))


def _code_of(function: Function | None) -> CodeType | None:
    return getattr(function, "__code__", None)


def _arguments(function: Function | None, frame: FrameType) -> Kwargs | None:
    """The arguments of a function, if a frame is one of its frames; else None."""
    code = frame.f_code
    if function is None or code is not _code_of(function):
        return None
    values = dict(variables_of(frame))
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


def _jaxprs(frames: Sequence[FrameType]) -> Iterator[tuple[str, Jaxpr]]:
    """The jaxprs in JAX's variables, each with the name of the variable."""
    for name, items in _variables(frames):
        yield from ((name, each) for each in items if _is_jaxpr(each))


def _trees(frames: Sequence[FrameType]) -> list[PyTreeDef]:
    """The structures in JAX's variables, those of results first."""
    found = [
        (name, tree)
        for name, items in _variables(frames)
        for each in items
        if _is_from_jax(each)
        if isinstance(tree := getattr(each, "tree", each), tree_util.PyTreeDef)
    ]
    return [tree for _, tree in sorted(found, key=lambda pair: "out" not in pair[0])]


def _variables(frames: Sequence[FrameType]) -> Iterator[tuple[str, Sequence[PyTree]]]:
    """JAX's variables, each as the items of a list."""
    for frame in frames:
        if not is_users(frame.f_code.co_filename):
            for name, value in list(variables_of(frame).items()):
                yield name, value if type(value) in (list, tuple) else (value,)


def _is_others(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    return is_users(frame.f_code.co_filename) and module.partition(".")[0] != "equinox"


def _is_from_jax(value: object) -> bool:
    return type(value).__module__.partition(".")[0] in ("jax", "jaxlib")


def _is_jaxpr(value: object) -> bool:
    inside = getattr(value, "jaxpr", value) if _is_from_jax(value) else None
    return all(hasattr(inside, name) for name in ("eqns", "invars", "outvars"))
