"""Reads a failing call from its source: which expression stands for which argument."""

import ast
import contextlib
import inspect
import itertools
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import NamedTuple

import numpy as np
from jax import tree_util

from .._leaves.dtypes import dtype_of, is_array, kind
from .._leaves.types import Function, Leaf, PyTree
from .._source.files import is_users
from .._source.syntax import evaluated, expression, statement, text_of
from .fed import parameter

_LONG = 40  # an expression with more characters is not shown


class Site(NamedTuple):
    """A line of a function that called something, and what it called.

    Attributes:
        frame: of the function.
        line: its current line.
        node: the expression that is evaluated; None if the source cannot be read.
        inside: the frames of what it called, outside in.
    """

    frame: FrameType
    line: int
    node: ast.AST | None
    inside: list[FrameType]

    @property
    def file(self) -> str:
        """The file of the function."""
        return self.frame.f_code.co_filename

    @property
    def name(self) -> str:
        """The call as it is written, without its arguments."""
        node, text = self.node, ""
        while isinstance(node, ast.Call) and (len(text) > _LONG or node is self.node):
            node = node.func
            text = ast.unparse(node)
        text = text or (ast.unparse(node) if node is not None else "")
        return text if len(text) <= _LONG else ""


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
    """A leaf of an argument of a call.

    Attributes:
        name: of the parameter, and the path in it.
        value: the leaf; of an argument that names a dtype, such as `x.dtype`, the dtype.
        source: the expression of the leaf, or of the container that holds it; None if it
            is not known.
        is_whole: whether it is the expression of the leaf itself.
        position: of the parameter.
        text: the expression as it is written.
    """

    name: str
    value: Leaf
    source: ast.expr | None = None
    is_whole: bool = True
    position: int = 0
    text: str = ""

    @property
    def base(self) -> str:
        """The name of the parameter."""
        return parameter(self.name)

    def with_text(self, file: str) -> "Argument":
        """The argument with the text of its expression, which a file has."""
        return self._replace(text=text_of(self.source, file)) if self.source else self


def arguments(site: Site) -> Iterator[list[Argument]]:
    """The arguments of the called function, by the names that each frame of it has.

    The first that fits an error is the best: it is the function that the user wrote.
    """
    unnamed = []
    node = stored(site) or site.node
    is_called = True  # by the user's line, not by another function of JAX
    for frame in itertools.takewhile(
        lambda frame: not is_users(frame.f_code.co_filename), site.inside
    ):
        if named := _named(frame):
            sources = _sources(node, list(named), frame) if is_called else {}
            pairs = [(evaluated(x, site.frame), named.get(n)) for n, x in sources.items()]
            if any(_differ(*pair) for pair in pairs):
                sources = {}  # a function in C passed other arguments on
            found = [
                leaf._replace(position=position)
                for position, (name, value) in enumerate(named.items())
                for leaf in _leaves(name, value, sources.get(name))
            ]
            # A method, such as `reshape`, and not an operator.
            is_method = isinstance(site.node, ast.Call) and frame.f_code.co_argcount == 1
            if "args" in named and not (is_method and is_array(named.get("self"))):
                unnamed.append(found)
            else:
                is_called = is_called and frame.f_code.co_argcount == 0
                yield found
    yield from unnamed


def stored(site: Site) -> ast.Assign | None:
    """The statement that writes to an item, where that is what raised an error."""
    if not isinstance(getattr(site.node, "ctx", None), ast.Store):
        return None
    node = statement(site.file, site.line)
    return node if isinstance(node, ast.Assign) else None


def written_in(site: Site) -> Iterator[Argument]:
    """The arrays in a call and in what is called, as far as its source looks them up."""
    node = site.node
    if not isinstance(node, ast.Call):
        return
    queue: list[ast.expr] = [*node.args, *(keyword.value for keyword in node.keywords)]
    for source in queue:
        if isinstance(source, ast.Dict):
            queue += source.values
        elif isinstance(source, (ast.List, ast.Tuple)):
            is_computed = evaluated(source, site.frame) is None  # in part
            queue += source.elts * is_computed
    called = [name for name in ast.walk(node.func) if isinstance(name, ast.Name)]
    for source in (*queue, *called):
        known = None if source in called else source
        for path, leaf in tree_util.tree_flatten_with_path(evaluated(source, site.frame))[
            0
        ]:
            if is_array(leaf) and kind(dtype_of(leaf)):
                name = tree_util.keystr(path)
                yield Argument(name, leaf, known, not path).with_text(site.file)


def _differ(source: PyTree, passed: PyTree) -> bool:
    """Whether an expression is not what was passed, as far as both are known."""
    if source is None or source is passed or dtype_of(passed) is None:
        return False
    of = lambda value: (dtype_of(value), getattr(value, "shape", ()))
    return of(source) != of(passed)


def _named(frame: FrameType) -> dict[str, PyTree]:
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


def _sources(
    node: ast.AST | None, names: list[str], frame: FrameType
) -> dict[str, ast.expr]:
    """The expressions of the arguments."""
    if isinstance(node, ast.Assign):  # to an item
        return {"value": node.value} if "value" in names else {}
    if isinstance(node, ast.Call):
        found = {}
        if names[:2] == ["array", "index"] and isinstance(node.func, ast.Attribute):
            place = node.func.value  # x.at[index]
            if isinstance(place, ast.Subscript) and isinstance(place.value, ast.Attribute):
                found = {"array": place.value.value, "index": place.slice}
            names = names[names.index("self") :]
        if names[0] == "self":
            if isinstance(node.func, ast.Attribute):
                found["self"] = node.func.value
            elif frame.f_code.co_name != "__call__":
                return {}  # `sum`, `divmod` and others in C
            names = names[1:]
        if not any(isinstance(each, ast.Starred) for each in node.args):
            count = frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
            rest = frame.f_code.co_varnames[count : count + 1]
            if len(rest) == 1 and names[-1:] == list(rest) and rest[0] in names:
                first = frame.f_code.co_argcount - (
                    frame.f_code.co_varnames[:1] == ("self",)
                )
                many = ast.List(node.args[first:], ast.Load())
                found |= dict(zip(names[:first], node.args)) | {rest[0]: many}
            else:
                found |= zip(names, node.args)
        return found | {each.arg: each.value for each in node.keywords if each.arg}
    pair: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        pair = [node.left, node.right]
    elif isinstance(node, ast.AugAssign):
        pair = [node.target, node.value]
    elif isinstance(node, ast.Compare):
        is_plain = len(node.ops) == 1 and not isinstance(node.ops[0], (ast.In, ast.NotIn))
        pair = [node.left, *node.comparators] if is_plain else []
    elif isinstance(node, ast.Subscript):
        pair = [node.value, node.slice]
    elif isinstance(node, ast.UnaryOp):
        pair = [node.operand]
    is_reflected = frame.f_code.co_name.startswith(("_operator_r", "__r"))
    is_shift = frame.f_code.co_name in ("_operator_rshift", "__rshift__")
    return dict(zip(names, reversed(pair) if is_reflected and not is_shift else pair))


def _leaves(name: str, value: PyTree, source: ast.expr | None) -> Iterator[Argument]:
    """The leaves of an argument, with the parts of its source if it is written out."""
    if type(value) is slice:
        if isinstance(source, ast.Slice):
            ends = source.lower, source.upper, source.step
            for end, each in zip(("start", "stop", "step"), ends):
                if each is not None:
                    yield from _leaves(f"{name}.{end}", getattr(value, end), each)
        return
    if type(value) in (list, tuple) and isinstance(source, (ast.List, ast.Tuple)):
        if len(source.elts) == len(value):
            for number, pair in enumerate(zip(value, source.elts)):
                yield from _leaves(f"{name}[{number}]", *pair)
            return
        source = None
    if type(value) is dict and isinstance(source, ast.Dict):
        keys = [getattr(key, "value", None) for key in source.keys]
        if keys == [*value]:
            for key, each in zip(keys, source.values):
                yield from _leaves(f"{name}[{key!r}]", value[key], each)
            return
    for path, leaf in tree_util.tree_flatten_with_path(value)[0]:
        if name == "dtype" and leaf is not None and not is_array(leaf):
            with contextlib.suppress(TypeError):  # of another library
                leaf = np.dtype(leaf)
        yield Argument(name + tree_util.keystr(path), leaf, source, not path)
