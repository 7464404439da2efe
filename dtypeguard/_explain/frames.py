"""Reads the control flow that an error passed through from JAX's frames.

As long as JAX keeps its own frames in a traceback, they hold what a note needs: the call,
its arguments, and the jaxprs of the traced functions. This file knows calls by the code of
JAX's and Equinox's public functions, arguments by their public parameters, jaxprs and trees
by their type. Names of JAX's variables only decide between two values of one type: a
release that changes them may cost a note, and nothing else.
"""

import contextlib
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import jax
from jax import tree_util
from jax.extend import core

from .._blame.body import Body
from .._carry.split import SplitTree
from .._leaves.table import grouped
from .._leaves.types import Function, Jaxpr, Kwargs, Leaf, PyTree
from .._program.trace import strong_type
from .._source.files import is_users, package
from .._source.inert import variables_of
from .._source.origin import Origin, origin_of_frame
from .unfiltered import FOLDER_OF_JAX


@dataclasses.dataclass(frozen=True)
class ControlFlowKind:
    """A function of control flow, with the names of its parameters.

    Attributes:
        name: of the function.
        body: the parameter of its body; empty if it has branches.
        inputs: the parameters that its body is given, the carry last.
        is_pair: whether the body is given a slice of `xs` as well, and returns a pair whose
            first item comes back.
        branches: the parameters of branches, or of a list of them.
        module: that has it.
    """

    name: str
    body: str = ""
    inputs: tuple[str, ...] = ()
    is_pair: bool = False
    branches: tuple[str, ...] = ()
    module: str = "jax.lax"

    @property
    def carry(self) -> int:
        """The position of what comes back among the inputs of a body."""
        return len(self.inputs) - 1

    def function(self) -> Function | None:
        """Returns the function; None if its module is not imported."""
        return getattr(sys.modules.get(self.module), self.name, None)


_SCAN_KIND = ControlFlowKind("scan", "f", ("init",), is_pair=True)
_WHILE_KIND = ControlFlowKind("while_loop", "body_fun", ("init_val",))
_CONTROL_FLOW_KINDS = (
    _SCAN_KIND,
    _WHILE_KIND,
    ControlFlowKind("fori_loop", "body_fun", ("lower", "init_val")),
    ControlFlowKind("cond", branches=("true_fun", "false_fun")),
    ControlFlowKind("switch", branches=("branches",)),
    dataclasses.replace(_SCAN_KIND, module="equinox.internal"),
    dataclasses.replace(_WHILE_KIND, module="equinox.internal"),
)


@dataclasses.dataclass(frozen=True)
class ControlFlow:
    """One call of control flow.

    Attributes:
        kind: which function it calls.
        line: that of the innermost frame outside JAX and Equinox that led to it.
        bodies: that of a loop; branches, by the names of their parameters.
        carry: the position of the carry in what the user gives to a package.
        first: the first values of a carry and the arrays beside it.
        compared: the carries that Equinox compares.
    """

    kind: ControlFlowKind
    line: Origin | None
    bodies: Mapping[str, Body]
    carry: int = 0
    first: Sequence[Leaf] = ()
    compared: Sequence[PyTree] = ()

    @property
    def file(self) -> str:
        """The file of the caller."""
        return getattr(self.line, "file", "")

    def path(self, path: str) -> str:
        """Returns a path in its carry or result without the nodes that Flax NNX puts in."""
        if package(self.file) != "flax":
            return path
        return re.sub(r"\.states\[\d+\]", "", path).removesuffix(".value")

    @property
    def is_loop(self) -> bool:
        """Whether it has a carry, and no branches."""
        return not self.kind.branches

    @property
    def is_of_jax(self) -> bool:
        """Whether JAX itself wrote the body of a loop."""
        file = getattr(self.bodies["body"].code, "co_filename", "")
        return file.startswith(FOLDER_OF_JAX)


def control_flow(frames: Sequence[FrameType]) -> Iterator[ControlFlow]:
    """Yields the calls of control flow that raised an error, outside in.

    Only JAX and Equinox may stand inside them: an error that the body of a `scan` raised
    does not come from the `scan`.

    Args:
        frames: those that the error passed through, outside in.
    """
    first = len(frames)
    for frame in reversed(frames):
        if not _is_of_libraries(frame):
            break
        first -= 1
    line = origin_of_frame(frames[first - 1])
    for number in range(first, len(frames)):
        inner_frames = frames[number:]
        for kind in _CONTROL_FLOW_KINDS:
            arguments = _arguments_in_frame(kind.function(), frames[number])
            if arguments is None:
                continue
            # JAX has let them go, or has fewer than there are branches.
            with contextlib.suppress(LookupError, AttributeError, ValueError):
                read = _read_loop
                if kind.branches:
                    read = _read_branches
                call = read(kind, line, arguments, inner_frames)
                # If a body was running, the error is of a call inside of it.
                codes = {body.code for body in call.bodies.values()}
                if codes.isdisjoint(frame.f_code for frame in inner_frames):
                    yield call


def _read_loop(
    kind: ControlFlowKind,
    line: Origin | None,
    arguments: Kwargs,
    frames: Sequence[FrameType],
) -> ControlFlow:
    """Returns a loop with its body."""
    variables = frames[-1].f_locals
    if kind.body not in arguments:  # Equinox has deleted it, and compares in this frame
        arguments = {"body_fun": variables["body_fun"], "init_val": variables["val"]}
    function = arguments[kind.body]
    inputs = tuple(arguments[name] for name in kind.inputs)
    first = SplitTree(inputs[kind.carry]).arrays
    sequences = arguments.get("xs")
    if kind.is_pair:
        inputs += (tree_util.tree_map(_slice, sequences),)
    # The condition of a loop may stand next to its body.
    jaxprs = [jaxpr for _, jaxpr in _jaxprs(frames)]
    # Equinox names the carry before and after a turn so.
    compared: list[PyTree] = [variables.get(x) for x in ("buffer_val", "buffer_val2")]
    if kind.is_pair and None not in compared:
        # Its loop carries an index and the results as well.
        compared = [tree[1] for tree in compared]
    # Flax NNX lets the user choose the carry of a scan.
    carry = getattr(function, "input_carry_argnum", None)
    if type(carry) is not int:
        carry = kind.carry
    body = Body(function, inputs, kind.carry, kind.is_pair, jaxprs)
    first += tree_util.tree_leaves(sequences)
    return ControlFlow(kind, line, {"body": body}, carry, first, compared)


def _slice(leaf: Leaf) -> jax.ShapeDtypeStruct:
    array = strong_type(leaf)
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)


def _read_branches(
    kind: ControlFlowKind,
    line: Origin | None,
    arguments: Kwargs,
    frames: Sequence[FrameType],
) -> ControlFlow:
    """Returns a call with its branches; an error if a jaxpr is missing."""
    functions: Kwargs = {}
    for name in kind.branches:
        value = arguments[name]
        if isinstance(value, Sequence):
            for number, branch in enumerate(value):
                functions[f"{name}[{number}]"] = branch
        else:
            functions[name] = value
    operands = tuple(arguments.get("operands", ()))
    if "operand" in arguments:
        operands = (arguments["operand"],)
    named_jaxprs = list(_jaxprs(frames))
    latest_jaxprs = named_jaxprs[-len(functions) :]
    # JAX holds them one by one, or in a list: the last list of that length.
    for of_variable in grouped(named_jaxprs, lambda pair: pair[0]):
        if len(of_variable) == len(functions):
            latest_jaxprs = of_variable
    bodies = {}
    for (name, function), (_, jaxpr) in zip(functions.items(), latest_jaxprs, strict=True):
        bodies[name] = Body(function, operands, jaxprs=[jaxpr])
    return ControlFlow(kind, line, bodies)


def _arguments_in_frame(function: Function | None, frame: FrameType) -> Kwargs | None:
    """Returns the arguments of a function, if a frame is one of its frames; else None."""
    # By its code: the user may have imported it under another name.
    code = frame.f_code
    if function is None or code is not getattr(function, "__code__", None):
        return None
    # A copy: before Python 3.13 a frame has one dict, and writes into it.
    variables = dict(frame.f_locals)
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is None:
        return variables
    # All functions of one wrapper share its code. Their variables hold the wrapped one.
    if all(value is not wrapped for value in variables.values()):
        return None
    # JAX deletes the variables of the wrapped one early, to free memory.
    names: Any = inspect.getargs(code)
    bound = inspect.signature(function).bind_partial(
        *variables.get(names.varargs, ()), **variables.get(names.varkw, {})
    )
    return bound.arguments


def _jaxprs(frames: Sequence[FrameType]) -> Iterator[tuple[str, Jaxpr]]:
    """Yields the jaxprs in JAX's variables, or in their lists, with their names."""
    for frame in frames:
        if is_users(frame.f_code.co_filename):
            continue
        for name, value in list(variables_of(frame).items()):
            items = [value]
            if type(value) in (list, tuple):
                items = value
            for item in items:
                if isinstance(item, (core.Jaxpr, core.ClosedJaxpr)):
                    yield name, item


def _is_of_libraries(frame: FrameType) -> bool:
    """Returns whether a frame belongs to JAX or to Equinox."""
    name = frame.f_globals.get("__name__", "")
    top_package, _, _ = name.partition(".")
    return top_package == "equinox" or not is_users(frame.f_code.co_filename)
