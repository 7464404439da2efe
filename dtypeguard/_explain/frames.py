"""Reads the control flow that an error passed through from JAX's frames.

As long as JAX keeps its own frames in a traceback, they hold what a note needs: the call,
its arguments, and the jaxprs of the traced functions. This file knows calls by the code of
JAX's and Equinox's public functions, arguments by their public parameters, jaxprs and trees
by their type. Names of JAX's variables only decide between two values of one type: a
release that changes them may cost a note, and nothing else.
"""

import contextlib
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import NamedTuple

import jax
from jax import tree_util

from .._blame.body import Body
from .._carry.split import SplitTree
from .._leaves.types import Function, Jaxpr, Kwargs, Leaf, PyTree
from .._program.trace import strong_type
from .._source.files import is_users, package
from .._source.inert import variables_of
from .._source.origin import Origin, origin_of_frame
from .unfiltered import JAX


class ControlFlowKind(NamedTuple):
    """A function of control flow."""

    name: str
    keyword: str = ""  # the parameter of its body
    # Makes the arguments of the body from those of the call. Branches have none.
    inputs: Callable[[Kwargs], tuple[PyTree, ...]] = lambda given: ()
    carry: int = 0  # the position among them of what comes back
    is_pair: bool = False  # whether the body returns a pair, whose first item comes back
    branches: Callable[[Kwargs], Kwargs] | None = None  # by the names of their parameters
    module: str = "jax.lax"
    # Takes the carry from what Equinox compares before there is a jaxpr.
    compared: Callable[[PyTree], PyTree] = lambda value: value


def _slice(leaf: Leaf) -> jax.ShapeDtypeStruct:
    array = strong_type(leaf)
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)


_SCAN = ControlFlowKind(
    "scan",
    "f",
    lambda x: (x["init"], tree_util.tree_map(_slice, x.get("xs"))),
    is_pair=True,
)
_WHILE = ControlFlowKind("while_loop", "body_fun", lambda x: (x["init_val"],))
_CONTROL_FLOW_KINDS = (
    _SCAN,
    _WHILE,
    ControlFlowKind(
        "fori_loop", "body_fun", lambda x: (x["lower"], x["init_val"]), carry=1
    ),
    ControlFlowKind(
        "cond", branches=lambda x: {n: x.get(n) for n in ("true_fun", "false_fun")}
    ),
    ControlFlowKind(
        "switch",
        branches=lambda x: {
            f"branches[{n}]": branch for n, branch in enumerate(x.get("branches", ()))
        },
    ),
    _SCAN._replace(
        # Its loop carries an index and the results as well.
        compared=lambda x: x[1] if isinstance(x, tuple) and len(x) == 3 else None,
        module="equinox.internal",
    ),
    _WHILE._replace(module="equinox.internal"),
)


class ControlFlow(NamedTuple):
    """One call of control flow."""

    kind: ControlFlowKind
    line: Origin | None  # of the innermost frame outside JAX and Equinox that led to it
    carry: int  # the position of the carry in what the user gives to a package
    bodies: Mapping[str, Body] = {}  # that of a loop; branches, by their parameters
    first: Sequence[Leaf] = ()  # what a carry and the arrays beside it are at first
    compared: Sequence[PyTree] = ()  # the carries that Equinox compares

    @property
    def file(self) -> str:
        """The file of the caller."""
        return self.line.file if self.line else ""

    def path(self, path: str) -> str:
        """A path in its carry or result, without the nodes that Flax NNX puts in."""
        plain = re.sub(r"\.states\[\d+\]", "", path).removesuffix(".value")
        return plain if package(self.file) == "flax" else path

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
    known = [
        (x, getattr(sys.modules.get(x.module), x.name, None)) for x in _CONTROL_FLOW_KINDS
    ]
    line = origin_of_frame(frames[first - 1]) if first else None
    for number, (kind, called) in itertools.product(range(first, len(frames)), known):
        if (arguments := _arguments_in_frame(called, frames[number])) is not None:
            # Flax NNX lets the user choose it for a scan.
            chosen = getattr(arguments.get("f"), "input_carry_argnum", 0)
            carry = chosen if chosen and type(chosen) is int else kind.carry
            filled = _with_branches if kind.branches else _with_body
            with contextlib.suppress(LookupError, AttributeError):  # no longer held
                yield filled(ControlFlow(kind, line, carry), arguments, frames[number:])


def _with_body(
    call: ControlFlow, given: Kwargs, frames: Sequence[FrameType]
) -> ControlFlow:
    """A loop with its body."""
    kind, last = call.kind, frames[-1].f_locals
    # The condition of a loop may stand next to its body.
    held = sorted(_jaxprs(frames), key=lambda pair: "body" not in pair[0])
    if kind.keyword not in given:  # Equinox has deleted it, and compares in this frame
        given = {"body_fun": last["body_fun"], "init_val": last["val"]}
    inputs, function = kind.inputs(given), given[kind.keyword]
    jaxprs = [jaxpr for _, jaxpr in held]
    first = SplitTree(inputs[kind.carry]).arrays + tree_util.tree_leaves(given.get("xs"))
    return call._replace(
        bodies={"body": Body(function, inputs, kind.carry, kind.is_pair, jaxprs)},
        first=first,
        compared=[kind.compared(last.get(name)) for name in ("buffer_val", "buffer_val2")],
    )


def _with_branches(
    call: ControlFlow, given: Kwargs, frames: Sequence[FrameType]
) -> ControlFlow:
    """A call with its branches; without them if a jaxpr is missing."""
    functions = call.kind.branches(given) if call.kind.branches else {}
    number = len(functions)
    lists = [items for _, items in _variables(frames) if all(map(_is_jaxpr, items))]
    lists = [[jaxpr for _, jaxpr in _jaxprs(frames)][-number:], *lists]
    jaxprs = [items for items in lists if len(items) == number][-1]
    operands = tuple(given.get("operands") or ())
    bodies = {
        name: Body(function, operands, jaxprs=[jaxpr])
        for (name, function), jaxpr in zip(functions.items(), jaxprs)
        if function
    }
    return call._replace(bodies=bodies)


def _arguments_in_frame(function: Function | None, frame: FrameType) -> Kwargs | None:
    """The arguments of a function, if a frame is one of its frames; else None."""
    code = frame.f_code
    if function is None or code is not getattr(function, "__code__", None):
        return None
    values = dict(variables_of(frame))
    inner = getattr(function, "__wrapped__", None)
    # All functions of one wrapper share its code. Their variables hold what they wrap.
    if inner is None:
        return values
    if all(value is not inner for value in values.values()):
        return None
    _, positional, keyword = inspect.getargs(code)
    given, keywords = values.get(positional, ()), values.get(keyword, {})
    try:
        return inspect.signature(function).bind_partial(*given, **keywords).arguments
    except TypeError:
        return None


def _jaxprs(frames: Sequence[FrameType]) -> Iterator[tuple[str, Jaxpr]]:
    """The jaxprs in JAX's variables, each with the name of the variable."""
    for name, items in _variables(frames):
        yield from ((name, each) for each in items if _is_jaxpr(each))


def _variables(frames: Sequence[FrameType]) -> Iterator[tuple[str, Sequence[PyTree]]]:
    """JAX's variables, each as the items of a list."""
    for frame in frames:
        if not is_users(frame.f_code.co_filename):
            for name, value in list(variables_of(frame).items()):
                yield name, value if type(value) in (list, tuple) else (value,)


def _is_others(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    return is_users(frame.f_code.co_filename) and module.partition(".")[0] != "equinox"


def _is_jaxpr(value: object) -> bool:
    is_from_jax = type(value).__module__.partition(".")[0] in ("jax", "jaxlib")
    inside = getattr(value, "jaxpr", value) if is_from_jax else None
    return all(hasattr(inside, name) for name in ("eqns", "invars", "outvars"))
