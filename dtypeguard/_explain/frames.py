"""Reads the control flow that an error passed through from JAX's frames.

As long as JAX keeps its own frames in a traceback, they hold what a note needs: the call,
its arguments, and the jaxprs of the traced functions. This file knows calls by the code of
JAX's and Equinox's public functions, arguments by their public parameters, jaxprs and trees
by their type. Names of JAX's variables only decide between two values of one type: a
release that changes them may cost a note, and nothing else.
"""

import contextlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import NamedTuple

import jax
from jax import tree_util

from .._carry.split import SplitTree
from .._leaves.types import Function, Jaxpr, Kwargs, Leaf, PyTree, PyTreeDef
from .._lines.body import Body
from .._program.trace import strong_type
from .._source.files import is_installed, is_users, short_path
from .._source.inert import variables_of
from .._source.origin import Origin, origin_of_frame
from .unfiltered import JAX


class Kind(NamedTuple):
    """A function of control flow.

    Attributes:
        name: of the function.
        keyword: the parameter of its body.
        inputs: makes the arguments of the body from those of the call. Branches have none.
        carry: the position among them of what comes back.
        is_pair: whether the body returns a pair, of which the first item comes back.
        branches: makes the branches from the arguments, by the names of their parameters.
        module: that has the function.
        renamed: the names of parameters in Equinox's frame, which compares the carry before
            there is a jaxpr, and has deleted its own arguments.
        compared: takes the carry from what that frame compares.
    """

    name: str
    keyword: str = ""
    inputs: Callable[[Kwargs], tuple[PyTree, ...]] = lambda given: ()
    carry: int = 0
    is_pair: bool = False
    branches: Callable[[Kwargs], Kwargs] | None = None
    module: str = "jax.lax"
    renamed: Mapping[str, str] = {}
    compared: Callable[[PyTree], PyTree] = lambda value: value

    @property
    def function(self) -> Function | None:
        """The function; None if its module is not imported, or has none."""
        return getattr(sys.modules.get(self.module), self.name, None)


def _slice(leaf: Leaf) -> jax.ShapeDtypeStruct:
    array = strong_type(leaf)
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)


_SCAN = Kind(
    "scan",
    "f",
    lambda x: (x["init"], tree_util.tree_map(_slice, x.get("xs"))),
    is_pair=True,
)
_WHILE = Kind("while_loop", "body_fun", lambda x: (x["init_val"],))
_EQUINOX = {
    "module": "equinox.internal",
    "renamed": {"body_fun": "body_fun", "init_val": "val"},
}
_KINDS = (
    _SCAN,
    _WHILE,
    Kind(
        "fori_loop",
        "body_fun",
        lambda x: (x["lower"], x["init_val"]),
        carry=1,
    ),
    Kind("cond", branches=lambda x: {n: x.get(n) for n in ("true_fun", "false_fun")}),
    Kind(
        "switch",
        branches=lambda x: {
            f"branches[{n}]": branch for n, branch in enumerate(x.get("branches", ()))
        },
    ),
    _SCAN._replace(
        # Its loop carries an index and the results as well.
        compared=lambda x: x[1] if isinstance(x, tuple) and len(x) == 3 else None,
        **_EQUINOX,
    ),
    _WHILE._replace(**_EQUINOX),
)


class ControlFlow(NamedTuple):
    """One call of control flow.

    Attributes:
        kind: of control flow: its function.
        line: of the caller, the innermost frame outside JAX and Equinox that led to it;
            None if there is none.
        carry: the position of the carry in what the user gives to a package.
        bodies: of a loop its body; the branches, by the names of their parameters.
        first: what the carry of a loop and the arrays beside it are at first.
        compared: the carries that Equinox compares, before there is a jaxpr.
        trees: structures in JAX's variables, the likeliest of the result first.
    """

    kind: Kind
    line: Origin | None
    carry: int
    bodies: Mapping[str, Body] = {}
    first: Sequence[Leaf] = ()
    compared: Sequence[PyTree] = ()
    trees: Sequence[PyTreeDef] = ()

    @property
    def file(self) -> str:
        """The file of the caller."""
        return self.line.file if self.line else ""

    @property
    def is_of_nnx(self) -> bool:
        """Whether Flax NNX made it, whose carry are the parts of objects."""
        folder = os.path.join("flax", "nnx", "")
        return is_installed(self.file) and short_path(self.file).startswith(folder)

    def path(self, path: str) -> str:
        """A path in its carry or result, without the nodes that Flax NNX puts in."""
        plain = re.sub(r"\.states\[\d+\]", "", path).removesuffix(".value")
        return plain if self.is_of_nnx else path

    @property
    def is_loop(self) -> bool:
        """Whether it has a carry, and no branches."""
        return self.kind.branches is None

    @property
    def is_of_jax(self) -> bool:
        """Whether JAX itself wrote the body of a loop."""
        codes = [body.code for body in self.bodies.values() if self.is_loop]
        return any(code and code.co_filename.startswith(JAX) for code in codes)


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
    known = [(kind, kind.function) for kind in _KINDS]
    for number in range(first, len(frames)):
        for kind, function in known:
            arguments = _arguments(function, frames[number])
            if arguments is None:
                continue
            # Flax NNX lets the user choose it for a scan.
            chosen = getattr(arguments.get("f"), "input_carry_argnum", 0)
            call = ControlFlow(
                kind,
                origin_of_frame(caller) if caller else None,
                chosen if chosen and type(chosen) is int else kind.carry,
            )
            filled = _with_body if call.is_loop else _with_branches
            with contextlib.suppress(KeyError, AttributeError):  # no longer held
                yield filled(call, arguments, frames[number:])


def _with_body(
    call: ControlFlow, given: Kwargs, frames: Sequence[FrameType]
) -> ControlFlow:
    """A loop with its body."""
    kind, last = call.kind, frames[-1].f_locals
    held = list(_jaxprs(frames))
    # The condition of a loop may stand next to its body.
    jaxprs = [jaxpr for _, jaxpr in sorted(held, key=lambda pair: "body" not in pair[0])]
    if kind.renamed and kind.keyword not in given:
        renamed = kind.renamed.items()
        given = {name: last[variable] for name, variable in renamed if variable in last}
    body = Body(given[kind.keyword], kind.inputs(given), kind.carry, kind.is_pair, jaxprs)
    return call._replace(
        bodies={"body": body},
        first=SplitTree(body.inputs[kind.carry]).arrays
        + tree_util.tree_leaves(given.get("xs")),
        compared=[kind.compared(last.get(name)) for name in ("buffer_val", "buffer_val2")],
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
    bodies = {
        name: Body(function, operands, jaxprs=[jaxpr])
        for (name, function), jaxpr in zip(functions.items(), lists[-1])
        if function
    }
    return call._replace(bodies=bodies, trees=_trees(frames))


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
    names, positional, keyword = inspect.getargs(code)
    named = {name: values[name] for name in names if name in values}
    given, keywords = values.get(positional, ()), values.get(keyword, {})
    if inner is None or positional is None:
        return named | ({positional: given} if positional else {}) | keywords
    try:
        return inspect.signature(function).bind_partial(*given, **keywords).arguments
    except TypeError:
        return None


def _code_of(function: Function | None) -> CodeType | None:
    return getattr(function, "__code__", None)


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
