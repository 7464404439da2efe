"""Reads a failing call: what its frames were given, and which expression gave it.

JAX is given the user's own objects, so an expression that only looks something up stands
for the argument that is the same object.
"""

import ast
import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType

from jax import core, tree_util

from .._leaves.dtypes import dtype_of, is_array, kind
from .._leaves.key_path import KeyPath, key_paths, path_text
from .._leaves.types import Function, Leaf, PyTree
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
        node = self.node.func if isinstance(self.node, ast.Call) else self.node
        text = "" if node is None else ast.unparse(node)
        return text if len(text) <= _LONGEST_EXPRESSION else ""

    def writes(self, number: object) -> bool:
        """Returns whether a number stands in the call itself."""
        nodes = ast.walk(self.node or ast.Pass())
        return repr(number) in [repr(getattr(node, "value", None)) for node in nodes]


def sites(trace: TracebackType | None) -> list[Site]:
    """Returns the lines that an error passed through outside JAX, outside in."""
    traces = []
    while trace is not None:
        traces.append(trace)
        trace = trace.tb_next
    frames = [step.tb_frame for step in traces]
    lines = []
    for number, step in enumerate(traces):
        code = step.tb_frame.f_code
        if is_users(code.co_filename):
            node = expression(code, step.tb_lasti)
            called = frames[number + 1 :]
            lines.append(Site(step.tb_frame, step.tb_lineno, node, called))
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
        return "" if self.source is None else ast.unparse(self.source)


def arguments(site: Site) -> Iterator[list[Argument]]:
    """Yields the arguments of the called function, by the names that each frame has.

    The first that fits an error is the best: it is the function that the user wrote.
    """
    expressions = {}
    for argument in looked_up(site):
        expressions.setdefault(id(argument.value), argument)
    unnamed = []
    for frame in site.called_frames:
        if is_users(frame.f_code.co_filename):
            break
        by_name = _named_arguments(frame)
        leaves = list(_leaves_by_name(by_name, expressions))
        # A method, such as `reshape`, and not an operator.
        is_method = isinstance(site.node, ast.Call) and frame.f_code.co_argcount == 1
        if "args" in by_name and not (is_method and is_array(by_name.get("self"))):
            unnamed.append(leaves)
        elif leaves:
            yield leaves
    yield from unnamed


def _leaves_by_name(
    by_name: dict[str, PyTree], expressions: dict[int, Argument]
) -> Iterator[Argument]:
    for position, (name, value) in enumerate(by_name.items()):
        for path, leaf in _leaves_by_path(value):
            argument = Argument(name, path, leaf, position=position)
            if id(leaf) in expressions:
                written = expressions[id(leaf)]
                argument = dataclasses.replace(
                    argument, source=written.source, is_whole=written.is_whole
                )
            yield argument


def written_in(site: Site) -> Iterator[Argument]:
    """Yields the arrays in a call, as far as its source looks them up."""
    if isinstance(site.node, ast.Call):
        for argument in looked_up(site):
            if is_array(argument.value) and kind(dtype_of(argument.value)):
                yield argument


def looked_up(site: Site) -> Iterator[Argument]:
    """Yields the leaves of what an expression looks up, whole ones first."""
    node = site.node
    queue: list[ast.AST] = []
    if isinstance(node, ast.Call):
        queue += [*node.args, *node.keywords]
        if isinstance(node.func, ast.Attribute):
            queue.append(node.func.value)
    elif node is not None:
        queue += ast.iter_child_nodes(node)
    parts = []
    for source in queue:
        owner = getattr(source, "value", None)
        is_place = getattr(owner, "attr", "") == "at"  # x.at[index]
        if isinstance(source, _COMPOUND_NODES) or is_place:
            queue += ast.iter_child_nodes(source)
        elif isinstance(source, ast.Attribute) and source.attr in ("at", "dtype"):
            queue.append(source.value)
        elif isinstance(source, ast.expr):
            for path, leaf in _leaves_by_path(evaluated(source, site.frame)):
                argument = Argument("", path, leaf, source, is_whole=not path)
                if path:
                    parts.append(argument)
                elif leaf is not None:
                    yield argument
    yield from parts


def _named_arguments(frame: FrameType) -> dict[str, PyTree]:
    """Returns the arguments of a running function by name."""
    code = frame.f_code
    variables = frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[:count]
    by_name = {name: variables[name] for name in names if name in variables}
    if code.co_flags & inspect.CO_VARARGS:
        rest = code.co_varnames[count]
        if rest in variables and names:
            return by_name | {rest: variables[rest]}
        if rest in variables:
            keywords = variables.get("kwargs", {})
            return _bound(variables.get("fun"), variables[rest], keywords)
    place = by_name.get("self")  # x.at[index]
    array = getattr(place, "array", None)
    if array is None:
        return by_name
    return {"array": array, "index": getattr(place, "index", None)} | by_name


def _bound(
    function: Function | None, args: tuple[PyTree, ...], keywords: dict[str, PyTree]
) -> dict[str, PyTree]:
    """Returns the arguments of a function that JAX has wrapped."""
    try:
        parameters = inspect.signature(function).bind(*args, **keywords).arguments  # pyright: ignore[reportArgumentType]: a TypeError for None
    except (TypeError, ValueError):
        return {}
    return {} if parameters.keys() <= {"args", "kwargs"} else dict(parameters)


def _leaves_by_path(value: PyTree) -> Iterator[tuple[KeyPath, Leaf]]:
    """Yields the leaves of an argument by their paths, the ends of a slice among them."""
    if isinstance(value, slice):
        for end in ("start", "stop", "step"):
            number = getattr(value, end)
            if number is not None:
                yield (tree_util.GetAttrKey(end),), number
        return
    for path, leaf in zip(key_paths(value), tree_util.tree_leaves(value)):
        # JAX hands types on from frame to frame, by names that no user wrote.
        if not isinstance(leaf, core.AbstractValue):
            yield path, leaf
