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
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

import jax
from jax import tree_util

from .._blame.body import Body
from .._carry.split import SplitTree
from .._leaves.types import Function, Jaxpr, Kwargs, Leaf, PyTree
from .._program.trace import strong_type
from .._source.files import is_users, package
from .._source.inert import variables_of
from .._source.origin import Origin, origin_of_frame
from .unfiltered import FOLDER_OF_JAX


def _no_inputs(arguments: Kwargs) -> tuple[PyTree, ...]:
    del arguments
    return ()


def _same(compared: PyTree) -> PyTree:
    return compared


@dataclasses.dataclass(frozen=True)
class ControlFlowKind:
    """A function of control flow.

    Attributes:
        name: of the function.
        module: that has it.
        keyword: the parameter of its body; empty if it has branches.
        body_inputs: makes the arguments of the body from those of the call.
        carry: the position among them of what comes back.
        is_pair: whether the body returns a pair, whose first item comes back.
        branches: takes the branches from the arguments, by the names of their parameters.
        carry_of_equinox: takes the carry from what Equinox compares before it has a jaxpr.
    """

    name: str
    keyword: str = ""
    body_inputs: Callable[[Kwargs], tuple[PyTree, ...]] = _no_inputs
    carry: int = 0
    is_pair: bool = False
    branches: Callable[[Kwargs], Kwargs] | None = None
    module: str = "jax.lax"
    carry_of_equinox: Callable[[PyTree], PyTree] = _same

    def function(self) -> Function | None:
        """Returns the function; None if its module is not imported."""
        return getattr(sys.modules.get(self.module), self.name, None)


def _slice(leaf: Leaf) -> jax.ShapeDtypeStruct:
    array = strong_type(leaf)
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)


def _inputs_of_scan(arguments: Kwargs) -> tuple[PyTree, ...]:
    return arguments["init"], tree_util.tree_map(_slice, arguments.get("xs"))


def _inputs_of_while(arguments: Kwargs) -> tuple[PyTree, ...]:
    return (arguments["init_val"],)


def _inputs_of_fori(arguments: Kwargs) -> tuple[PyTree, ...]:
    return arguments["lower"], arguments["init_val"]


def _branches_of_cond(arguments: Kwargs) -> Kwargs:
    return {name: arguments.get(name) for name in ("true_fun", "false_fun")}


def _branches_of_switch(arguments: Kwargs) -> Kwargs:
    branches = arguments.get("branches", ())
    return {f"branches[{number}]": branch for number, branch in enumerate(branches)}


def _carry_of_equinox_scan(compared: PyTree) -> PyTree:
    # Its loop carries an index and the results as well.
    is_whole = isinstance(compared, tuple) and len(compared) == 3
    return compared[1] if is_whole else None


_SCAN_KIND = ControlFlowKind("scan", "f", _inputs_of_scan, is_pair=True)
_WHILE_KIND = ControlFlowKind("while_loop", "body_fun", _inputs_of_while)
_CONTROL_FLOW_KINDS = (
    _SCAN_KIND,
    _WHILE_KIND,
    ControlFlowKind("fori_loop", "body_fun", _inputs_of_fori, carry=1),
    ControlFlowKind("cond", branches=_branches_of_cond),
    ControlFlowKind("switch", branches=_branches_of_switch),
    dataclasses.replace(
        _SCAN_KIND, carry_of_equinox=_carry_of_equinox_scan, module="equinox.internal"
    ),
    dataclasses.replace(_WHILE_KIND, module="equinox.internal"),
)


@dataclasses.dataclass(frozen=True)
class ControlFlow:
    """One call of control flow.

    Attributes:
        kind: which function it calls.
        line: that of the innermost frame outside JAX and Equinox that led to it.
        carry: the position of the carry in what the user gives to a package.
        bodies: that of a loop; branches, by the names of their parameters.
        first: the first values of a carry and the arrays beside it.
        compared: the carries that Equinox compares.
    """

    kind: ControlFlowKind
    line: Origin | None
    carry: int
    bodies: Mapping[str, Body]
    first: Sequence[Leaf] = ()
    compared: Sequence[PyTree] = ()

    @property
    def file(self) -> str:
        """The file of the caller."""
        return self.line.file if self.line else ""

    def path(self, path: str) -> str:
        """Returns a path in its carry or result without the nodes that Flax NNX puts in."""
        if package(self.file) != "flax":
            return path
        return re.sub(r"\.states\[\d+\]", "", path).removesuffix(".value")

    @property
    def is_loop(self) -> bool:
        """Whether it has a carry, and no branches."""
        return self.kind.branches is None

    @property
    def is_of_jax(self) -> bool:
        """Whether JAX itself wrote the body of a loop."""
        code = self.bodies["body"].code if self.is_loop else None
        return code is not None and code.co_filename.startswith(FOLDER_OF_JAX)


def control_flow(frames: Sequence[FrameType]) -> Iterator[ControlFlow]:
    """Yields the calls of control flow that raised an error, outside in.

    Only JAX and Equinox may stand inside them: an error that the body of a `scan` raised
    does not come from the `scan`.

    Args:
        frames: those that the error passed through, outside in.
    """
    first = len(frames)
    while first > 0 and not _is_of_others(frames[first - 1]):
        first -= 1
    line = origin_of_frame(frames[first - 1]) if first else None
    for number in range(first, len(frames)):
        inner_frames = frames[number:]
        for kind in _CONTROL_FLOW_KINDS:
            arguments = _arguments_in_frame(kind.function(), frames[number])
            if arguments is None:
                continue
            with contextlib.suppress(LookupError, AttributeError):  # JAX has let them go
                read = _read_loop if kind.branches is None else _read_branches
                call = read(kind, line, arguments, inner_frames)
                if not _runs_one_of(call.bodies, inner_frames):
                    yield call


def _runs_one_of(bodies: Mapping[str, Body], frames: Sequence[FrameType]) -> bool:
    """Returns whether a body was running: then the error is of a call inside of it."""
    codes = [body.code for body in bodies.values()]
    return any(frame.f_code in codes for frame in frames)


def _read_loop(
    kind: ControlFlowKind,
    line: Origin | None,
    arguments: Kwargs,
    frames: Sequence[FrameType],
) -> ControlFlow:
    """Returns a loop with its body."""
    variables = frames[-1].f_locals
    # Flax NNX lets the user choose the carry of a scan.
    chosen_carry = getattr(arguments.get("f"), "input_carry_argnum", 0)
    has_chosen = type(chosen_carry) is int and chosen_carry > 0
    if kind.keyword not in arguments:  # Equinox has deleted it, and compares in this frame
        arguments = {"body_fun": variables["body_fun"], "init_val": variables["val"]}
    # The condition of a loop may stand next to its body.
    named_jaxprs = sorted(_jaxprs(frames), key=lambda pair: "body" not in pair[0])
    jaxprs = [jaxpr for _, jaxpr in named_jaxprs]
    # JAX's own types of these are behind names that change.
    inputs = kind.body_inputs(arguments)
    body = Body(arguments[kind.keyword], inputs, kind.carry, kind.is_pair, jaxprs)
    # Equinox names the carry before and after a turn so.
    compared = [variables.get(name) for name in ("buffer_val", "buffer_val2")]
    beside = tree_util.tree_leaves(arguments.get("xs"))
    return ControlFlow(
        kind,
        line,
        chosen_carry if has_chosen else kind.carry,
        {"body": body},
        first=SplitTree(inputs[kind.carry]).arrays + beside,
        compared=[kind.carry_of_equinox(value) for value in compared],
    )


def _read_branches(
    kind: ControlFlowKind,
    line: Origin | None,
    arguments: Kwargs,
    frames: Sequence[FrameType],
) -> ControlFlow:
    """Returns a call with its branches; an error if a jaxpr is missing."""
    functions = kind.branches(arguments) if kind.branches else {}
    # JAX holds them one by one, or in a list: the last list of that length.
    single_jaxprs = [jaxpr for _, jaxpr in _jaxprs(frames)]
    lists = [single_jaxprs[-len(functions) :]]
    for _, items in _variables(frames):
        if all(map(_is_jaxpr, items)):
            lists.append(list(items))
    jaxprs = [items for items in lists if len(items) == len(functions)][-1]
    operands = tuple(arguments.get("operands") or ())
    bodies = {}
    for (name, function), jaxpr in zip(functions.items(), jaxprs):
        if function is not None:
            bodies[name] = Body(function, operands, jaxprs=[jaxpr])
    return ControlFlow(kind, line, kind.carry, bodies)


def _arguments_in_frame(function: Function | None, frame: FrameType) -> Kwargs | None:
    """Returns the arguments of a function, if a frame is one of its frames; else None."""
    # By its code: the user may have imported it under another name.
    code = frame.f_code
    if function is None or code is not getattr(function, "__code__", None):
        return None
    # A copy: before Python 3.13 a frame has one dict, and writes into it.
    variables = dict(variables_of(frame))
    inner = getattr(function, "__wrapped__", None)
    if inner is None:
        return variables
    # All functions of one wrapper share its code. Their variables hold the wrapped one.
    if all(value is not inner for value in variables.values()):
        return None
    _, positional, keyword = inspect.getargs(code)
    args = variables.get(positional, ())
    kwargs = variables.get(keyword, {})
    try:
        return inspect.signature(function).bind_partial(*args, **kwargs).arguments
    except TypeError:
        return None


def _jaxprs(frames: Sequence[FrameType]) -> Iterator[tuple[str, Jaxpr]]:
    """Yields the jaxprs in JAX's variables, with the names of the variables."""
    for name, items in _variables(frames):
        for item in items:
            if _is_jaxpr(item):
                yield name, item


def _variables(frames: Sequence[FrameType]) -> Iterator[tuple[str, Sequence[PyTree]]]:
    """Yields JAX's variables by name, each as a list of values."""
    for frame in frames:
        if is_users(frame.f_code.co_filename):
            continue
        for name, value in list(variables_of(frame).items()):
            yield name, value if type(value) in (list, tuple) else (value,)


def _is_of_others(frame: FrameType) -> bool:
    """Returns whether a frame belongs neither to JAX nor to Equinox."""
    module = frame.f_globals.get("__name__", "")
    return is_users(frame.f_code.co_filename) and module.partition(".")[0] != "equinox"


def _is_jaxpr(value: object) -> bool:
    module = type(value).__module__
    is_from_jax = module.partition(".")[0] in ("jax", "jaxlib")
    opened = getattr(value, "jaxpr", value) if is_from_jax else None
    return all(hasattr(opened, name) for name in ("eqns", "invars", "outvars"))
