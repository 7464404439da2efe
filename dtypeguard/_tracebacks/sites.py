"""Reads a failing call: what its frames were given, and which expression gave it.

JAX is given the user's own objects, so an expression that only looks something up stands
for the argument that is the same object.
"""

import ast
import inspect
import itertools
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import NamedTuple

from jax import core, tree_util

from .._leaves.dtypes import dtype_of, is_array, kind
from .._leaves.types import Function, Leaf, PyTree
from .._source.files import is_users
from .._source.syntax import evaluated, expression, statement
from .path_text import parameter

_LONGEST_EXPRESSION = 40  # an expression with more characters is not shown


class Site(NamedTuple):
    """A line of a function that called something, and what it called."""

    frame: FrameType
    line: int
    node: ast.AST | None  # the expression; None if the source cannot be read
    inside: list[FrameType]  # of what it called, outside in

    @property
    def file(self) -> str:
        """The file of the function."""
        return self.frame.f_code.co_filename

    @property
    def name(self) -> str:
        """The call as it is written, without its arguments."""
        node = self.node.func if isinstance(self.node, ast.Call) else self.node
        text = ast.unparse(node) if node is not None else ""
        return text if len(text) <= _LONGEST_EXPRESSION else ""

    def writes(self, number: object) -> bool:
        """Whether a number stands in the call itself."""
        nodes = ast.walk(self.node or ast.Pass())
        return repr(number) in [repr(getattr(x, "value", None)) for x in nodes]


def sites(trace: TracebackType | None) -> list[Site]:
    """The lines that an error passed through outside JAX, outside in."""
    steps = []
    while trace is not None:
        steps.append((trace.tb_frame, trace.tb_lineno, trace.tb_lasti))
        trace = trace.tb_next
    frames = [frame for frame, _, _ in steps]
    return [
        Site(frame, line, expression(frame.f_code, last), frames[number + 1 :])
        for number, (frame, line, last) in enumerate(steps)
        if is_users(frame.f_code.co_filename)
    ]


class Argument(NamedTuple):
    """A leaf of an argument of a call."""

    name: str  # of the parameter, and the path in it
    value: Leaf
    # The expression of the leaf, or of the container that holds it; None if not known.
    source: ast.expr | None = None
    is_whole: bool = True  # whether it is the expression of the leaf itself
    position: int = 0  # of the parameter

    @property
    def base(self) -> str:
        """The name of the parameter."""
        return parameter(self.name)

    @property
    def text(self) -> str:
        """The expression; empty if it is not known."""
        return ast.unparse(self.source) if self.source else ""


def arguments(site: Site) -> Iterator[list[Argument]]:
    """The arguments of the called function, by the names that each frame of it has.

    The first that fits an error is the best: it is the function that the user wrote.
    """
    unnamed = []
    written = {id(x.value): x for x in reversed([*looked_up(site)])}
    is_others = lambda frame: not is_users(frame.f_code.co_filename)
    for frame in itertools.takewhile(is_others, site.inside):
        named = _named_arguments(frame)
        found = list[Argument]()
        for position, (name, value) in enumerate(named.items()):
            for path, leaf in _leaves_of_argument(value):
                known = written.get(id(leaf)) or Argument("", leaf)
                about = known.source, known.is_whole, position
                found.append(Argument(name + path, leaf, *about))
        # A method, such as `reshape`, and not an operator.
        is_method = isinstance(site.node, ast.Call) and frame.f_code.co_argcount == 1
        if "args" in named and not (is_method and is_array(named.get("self"))):
            unnamed.append(found)
        elif found:
            yield found
    yield from unnamed


def written_in(site: Site) -> Iterator[Argument]:
    """The arrays in a call, as far as its source looks them up."""
    for known in looked_up(site) if isinstance(site.node, ast.Call) else ():
        if is_array(known.value) and kind(dtype_of(known.value)):
            yield known


def looked_up(site: Site) -> Iterator[Argument]:
    """The leaves of what an expression looks up to compute with, whole ones first."""
    node, frame, inside = site.node, site.frame, list[Argument]()
    if isinstance(getattr(node, "ctx", None), ast.Store):  # what is written to an item
        node = statement(site.file, site.line)
    queue: list[ast.AST] = list(ast.iter_child_nodes(node)) if node else []
    if isinstance(node, ast.Call):
        queue.remove(node.func)
        queue += [node.func.value] if isinstance(node.func, ast.Attribute) else []
    for source in queue:
        owner = getattr(source, "value", None)
        is_place = getattr(owner, "attr", "") == "at"  # x.at[index]
        if isinstance(source, _WRITTEN_OUT) or is_place:
            queue += ast.iter_child_nodes(source)
        elif isinstance(source, ast.Attribute) and source.attr in ("at", "dtype"):
            queue += [source.value]
        elif isinstance(source, ast.expr):
            for path, leaf in _leaves_of_argument(evaluated(source, frame)):
                known = Argument(path, leaf, source, not path)
                if path:
                    inside.append(known)
                elif leaf is not None:
                    yield known
    yield from inside


# What is given part by part.
_WRITTEN_OUT = ast.Dict, ast.List, ast.Tuple, ast.Slice, ast.keyword, ast.Starred


def _named_arguments(frame: FrameType) -> dict[str, PyTree]:
    """The arguments of a running function by name."""
    code, values = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    names = list(code.co_varnames[:count])
    found = {name: values[name] for name in names if name in values}
    if code.co_flags & inspect.CO_VARARGS and code.co_varnames[count] in values:
        given = values[code.co_varnames[count]]
        if names:
            return found | {code.co_varnames[count]: given}
        return _bound(values.get("fun"), given, values.get("kwargs", {}))
    at = found.get("self")  # x.at[index]
    array, index = getattr(at, "array", None), getattr(at, "index", None)
    return found if array is None else {"array": array, "index": index} | found


def _bound(
    function: Function | None, given: tuple[PyTree, ...], keywords: dict[str, PyTree]
) -> dict[str, PyTree]:
    """The arguments of a function that JAX has wrapped."""
    try:
        parameters = inspect.signature(function).bind(*given, **keywords).arguments  # pyright: ignore[reportArgumentType]: a TypeError for None
    except (TypeError, ValueError):
        return {}
    return {} if parameters.keys() <= {"args", "kwargs"} else dict(parameters)


def _leaves_of_argument(value: PyTree) -> Iterator[tuple[str, Leaf]]:
    """The leaves of an argument by their paths, the ends of a slice among them."""
    if type(value) is slice:
        value = {end: getattr(value, end) for end in ("start", "stop", "step")}
        yield from ((f".{end}", x) for end, x in value.items() if x is not None)
        return
    for path, leaf in tree_util.tree_flatten_with_path(value)[0]:
        # JAX hands types on from frame to frame, by names that no user wrote.
        if not isinstance(leaf, core.AbstractValue):
            yield tree_util.keystr(path), leaf
