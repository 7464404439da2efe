"""Reads a failing call: what its frames were given, and which expression gave it.

JAX is given the user's own objects, so an expression that only looks something up stands
for the argument that is the same object.
"""

import ast
import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from jax import core

from .._leaves.key_path import KeyPath, by_path, path_text
from .._leaves.types import Args, Function, Kwargs, Leaf, PyTree
from .._source.files import is_users
from .._source.syntax import evaluated, expression

_LONGEST_EXPRESSION = 40  # an expression with more characters is not shown
# Expressions that hold what is looked up part by part.
_COMPOUND_NODES = (ast.Dict, ast.List, ast.Tuple, ast.Slice, ast.keyword, ast.Starred)


@dataclasses.dataclass(frozen=True)
class Site:
    """A line of a function that called something.

    Attributes:
        frame: of the function.
        line: its number.
        node: the expression that called; None if the source cannot be read.
        called_frames: the frames of the call, outside in.
    """

    frame: FrameType
    line: int
    node: ast.AST | None
    called_frames: Sequence[FrameType]

    @property
    def file(self) -> str:
        """The file of the function."""
        return self.frame.f_code.co_filename

    @property
    def name(self) -> str:
        """The call as it is written, without its arguments; empty if it is long."""
        node = self.node
        if isinstance(node, ast.Call):
            node = node.func
        text = _unparsed(node)
        if len(text) > _LONGEST_EXPRESSION:
            return ""
        return text


def _unparsed(node: ast.AST | None) -> str:
    if node is None:
        return ""
    return ast.unparse(node)


def sites(trace: TracebackType | None) -> list[Site]:
    """Returns the lines that an error passed through outside JAX, outside in."""
    steps = []
    while trace is not None:
        steps.append(trace)
        trace = trace.tb_next
    lines = []
    for number, step in enumerate(steps):
        frame = step.tb_frame
        if is_users(frame.f_code.co_filename):
            node = expression(frame.f_code, step.tb_lasti)
            called_frames = [inner.tb_frame for inner in steps[number + 1 :]]
            lines.append(Site(frame, step.tb_lineno, node, called_frames))
    return lines


@dataclasses.dataclass(frozen=True)
class Argument:
    """A leaf of an argument of a call.

    Attributes:
        base: the name of the parameter; empty if it is not known.
        path: of the leaf in the argument.
        value: the leaf.
        source: the expression of the leaf, or of the container that holds it; None if it
            is not known.
        is_whole: whether it is the expression of the leaf itself.
        position: of the parameter.
    """

    base: str
    path: KeyPath
    value: Leaf
    source: ast.expr | None = None
    is_whole: bool = True
    position: int = 0

    @property
    def name(self) -> str:
        """The name of the parameter, and the path in it."""
        return self.base + path_text(self.path)

    @property
    def text(self) -> str:
        """The expression; empty if it is not known."""
        return _unparsed(self.source)


_UNWRITTEN = Argument("", (), None)


def arguments(site: Site) -> Iterator[list[Argument]]:
    """Yields the arguments of the called function, by the names that each frame has.

    The first that fits an error is the best: it is the function that the user wrote.
    """
    expressions: dict[int, Argument] = {}
    for argument in looked_up(site):
        expressions.setdefault(id(argument.value), argument)
    # `reshape(*args)` has no names for them: a function inside of it may have.
    unnamed = []
    for frame in site.called_frames:
        if is_users(frame.f_code.co_filename):
            break  # a function of the user's that JAX calls
        by_name = _named_arguments(frame)
        leaves = []
        for position, (name, value) in enumerate(by_name.items()):
            for path, leaf in _leaves_by_path(value):
                written = expressions.get(id(leaf), _UNWRITTEN)
                argument = dataclasses.replace(
                    written, base=name, path=path, value=leaf, position=position
                )
                leaves.append(argument)
        if "args" in by_name:
            unnamed.append(leaves)
        else:
            yield leaves
    yield from unnamed


def looked_up(site: Site) -> Iterator[Argument]:
    """Yields the leaves of what an expression looks up, whole ones first."""
    # A leaf of a container may be given by itself as well, by a better name.
    parts = []
    for source in _looked_up_nodes(site.node):
        value = evaluated(source, site.frame)
        for path, leaf in _leaves_by_path(value):
            argument = Argument("", path, leaf, source, is_whole=not path)
            if path:
                parts.append(argument)
            else:
                yield argument
    yield from parts


def _looked_up_nodes(node: ast.AST | None) -> Iterator[ast.expr]:
    """Yields the operands of an expression, such as the arguments of a call."""
    queue: list[ast.AST] = []
    if isinstance(node, ast.Call):
        queue += node.args
        queue += node.keywords
        # The object of a method is an argument too, but not the function itself.
        if isinstance(node.func, ast.Attribute):
            queue.append(node.func.value)
    elif node is not None:
        queue += ast.iter_child_nodes(node)
    for operand in queue:
        owner = getattr(operand, "value", None)
        is_place = getattr(owner, "attr", "") == "at"  # x.at[index]
        if isinstance(operand, _COMPOUND_NODES) or is_place:
            queue += ast.iter_child_nodes(operand)
        elif isinstance(operand, ast.Attribute) and operand.attr in ("at", "dtype"):
            queue.append(operand.value)
        elif isinstance(operand, ast.expr):
            yield operand


def _named_arguments(frame: FrameType) -> dict[str, PyTree]:
    """Returns the arguments of a running function by name."""
    code = frame.f_code
    variables = frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        # A function of JAX's that takes any arguments hands them on to another.
        if count == 0 and "fun" in variables:
            args = variables.get("args", ())
            kwargs = variables.get("kwargs", {})
            return bound_arguments(variables["fun"], args, kwargs)
        count += 1
    by_name = {}
    for name in code.co_varnames[:count]:
        # JAX deletes some of its variables early, to free memory.
        if name in variables:
            by_name[name] = variables[name]
    place: Any = by_name.get("self")  # x.at[index]
    if hasattr(place, "array"):
        by_name["array"] = place.array
        by_name["index"] = getattr(place, "index", None)
    return by_name


def bound_arguments(function: Function, args: Args, kwargs: Kwargs) -> dict[str, PyTree]:
    """Returns arguments by the names that a function has for them, if it tells them."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):  # it has none, or the call does not fit it
        return {}
    return dict(bound.arguments)


class _Ends(NamedTuple):
    """The numbers of a slice."""

    start: Leaf
    stop: Leaf
    step: Leaf


def _leaves_by_path(value: PyTree) -> list[tuple[KeyPath, Leaf]]:
    """Returns the leaves of an argument by their paths, the ends of a slice among them."""
    if isinstance(value, slice):
        value = _Ends(value.start, value.stop, value.step)
    leaves = []
    for path, leaf in by_path(value).items():
        # JAX hands types on from frame to frame, by names that no user wrote.
        if not isinstance(leaf, core.AbstractValue):
            leaves.append((path, leaf))
    return leaves
