"""Reads a call that compiles a function from JAX's frames, without its arrays.

JAX reports each compilation to listeners (`jax.monitoring`) in the thread that compiles,
and the frame of jit's own `cache_miss` stands on the stack with the function and its
arguments. So nothing of JAX's is replaced, and a compiled function costs nothing. A release
that names them otherwise leaves the report empty, and nothing else.

What is read of the user's objects is read by `inert.py`, which runs nothing of theirs.
Trees are flattened as JAX flattens them for the same call.
"""

import functools
import inspect
import itertools
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
from jax import tree_util

from .._blame.why import Has, made_of, why
from .._carry.modules import is_in_place, spread
from .._leaves.dtypes import is_python_number
from .._leaves.internals import COMPILING
from .._leaves.leaf_type import LeafType, traced_type
from .._leaves.types import Args, Function, Jaxpr, Kwargs, Leaf, PyTree
from .._program.graph import Graph, open_jaxpr
from .._recording.monitored import RECORD
from .._recording.values import Made, is_array
from .._source.files import is_installed, is_users, line_text, package
from .._source.inert import (
    code_of,
    fields_of,
    is_a,
    items_of,
    package_of,
    static,
    written_code,
)
from .._source.origin import Origin, Why, origin_at, origin_of_frame
from .._tracebacks.path_text import keys, parameter

_WRAPPERS = "equinox", "flax"  # whose `jit` wraps JAX's
_DEPTH, _MOST_PARTS = 8, 20_000  # of arguments that are looked at for constants


class CompilingCall(NamedTuple):
    """A call that compiles a function."""

    key: Function  # that JAX was given
    function: Function  # that the user gave
    args: Args
    kwargs: Kwargs
    jaxpr: Jaxpr | None
    wrapper: str  # the package whose `jit` it is, if it is not JAX's
    callers: list[FrameType]  # but those of JAX and the wrapper, inside out

    def names(self, of: str) -> list[str]:
        """JAX's names of the leaves, "arg_names", or of the results, "result_paths"."""
        info = getattr(open_jaxpr(self.jaxpr), "debug_info", None)
        return [*map(str, getattr(info, of, None) or ())]

    @property
    def caller(self) -> Origin | None:
        """The user's line that called it."""
        users = [x for x in self.callers if not package(x.f_code.co_filename)]
        return origin_of_frame(users[0]) if users else None

    def arguments(self) -> dict[str, PyTree]:
        """Its arguments by the names of its parameters."""
        function, given = self.function, self.args
        is_object = type(function) not in (FunctionType, MethodType, functools.partial)
        if is_object and package_of(type(function)) not in ("jax", "jaxlib"):
            function, given = static(type(function), "__call__"), (None, *given)
        try:
            bound = inspect.signature(function).bind(*given, **self.kwargs)
        except (TypeError, ValueError):
            return {"args": self.args, "kwargs": self.kwargs}
        return dict([*bound.arguments.items()][len(given) - len(self.args) :])


def call_of(frames: Iterable[FrameType]) -> CompilingCall | None:
    """The call that compiles, from the frames inside of it and around it, inside out."""
    jaxpr, left = None, iter(frames)
    for frame in left:
        if is_users(frame.f_code.co_filename):
            return None  # compiled ahead of time, or a backward pass
        known = frame.f_locals.get("jaxpr")
        jaxpr = known if getattr(open_jaxpr(known), "debug_info", None) else jaxpr
        if frame.f_code.co_name in COMPILING:
            break
    else:
        return None
    variables = frame.f_locals
    key = variables["fun"] if "fun" in variables else variables["jit_info"].fun
    found = key, variables["args"], variables["kwargs"]
    code = code_of(key)
    wrapper = package(code.co_filename) if code else ""
    wrapper = wrapper if wrapper in _WRAPPERS else ""
    is_wrapping = lambda x: wrapper and package(x.f_code.co_filename) == wrapper
    callers = [x for x in left if is_users(x.f_code.co_filename)]
    for outer in itertools.takewhile(is_wrapping, callers):
        wrapping: Any = outer.f_locals.get("self")
        if package_of(type(wrapping)) == wrapper and hasattr(wrapping, "__wrapped__"):
            variables = outer.f_locals
            found = wrapping.__wrapped__, variables["args"], variables["kwargs"]
    callers = [*itertools.dropwhile(is_wrapping, callers)]
    return CompilingCall(key, *found, jaxpr, wrapper, callers)


class ArgumentPart(NamedTuple):
    """A leaf of the arguments, or what is a constant of the program.

    Attributes:
        shown: as the report has it.
        known: what it equals others by: types and values of Python's, or an identity, as
            JAX keeps the objects of what it has compiled.
        made: how it came to be, or what holds it, as far as that was recorded.
        type: of a leaf.
        is_object: whether it equals only itself.
    """

    shown: str
    known: Any
    made: Made | None = None
    type: LeafType | None = None
    is_object: bool = False

    def is_retyped(self, other: "ArgumentPart") -> bool:
        """Whether another call had a leaf of another type, and the same shape."""
        if self.type is None or other.type is None:
            return False
        return self.type.shape == other.type.shape


class Compiled(NamedTuple):
    """What a function was compiled for, by the paths of its leaves and constants."""

    code: CodeType
    name: str  # with the line of its definition
    parts: dict[str, ArgumentPart]
    returned: "dict[str, ReturnedLeaf]"  # in another type
    caller: Origin | None

    @property
    def line(self) -> Origin:
        """The line of its definition."""
        return origin_at(self.code.co_filename, self.code.co_firstlineno, self.name)

    @property
    def tree(self) -> dict[str, object]:
        """The paths, each with what stands there: a leaf, a constant of a type."""
        kind = lambda x: x.shown if x.is_object else x.known[0] if not x.type else None
        return {path: kind(part) for path, part in self.parts.items()}

    def why(self, path: str, before: "Compiled | None" = None) -> Why:
        """The lines that made a leaf, but for a call that was there before."""
        made, line = self.parts[path].made, str((before or self).caller)
        why = made.why() if made else Why()
        is_called = why.root and str(why.root.users) == str(self.caller) == line
        return Why() if is_called else why


class ReturnedLeaf(NamedTuple):
    """What a leaf comes back as: its type, the lines behind that, the item of a tuple."""

    type: LeafType
    why: Why
    item: int | None


def compiled(call: CompilingCall) -> Compiled | None:
    """What a call compiles; None if neither the function nor its call is the user's."""
    code = written_code(call.function)
    if code is None or not is_users(code.co_filename):  # in C, or JAX's
        return None
    outer = [frame.f_code.co_filename for frame in call.callers[:1]]
    if is_installed(code.co_filename) and any(map(is_installed, outer)):
        return None
    named = call.arguments()
    traced = {*map(parameter, call.names("arg_names"))} & {*named} or {*named}
    leaves = {
        f"{name}{tree_util.keystr(path)}": leaf
        for name in named
        if name in traced
        for path, leaf in tree_util.tree_flatten_with_path(spread(named[name]))[0]
        if is_array(leaf) or type(leaf) in _NUMBERS
        if not (call.wrapper == "equinox" and is_python_number(leaf))
    }
    parts = {path: _leaf(path, leaf) for path, leaf in leaves.items()}
    returned = dict(_returned(call, leaves)) if call.jaxpr else {}
    for name, value in named.items():
        # What is held in a node without keys has another path for JAX.
        if not any(path.startswith(f"{name}[<flat index") for path in leaves):
            found = itertools.islice(_constants(name, value, (), parts), _MOST_PARTS)
            parts |= [(path, part) for path, part in found if path not in parts]
    name = code.co_qualname.rpartition("<locals>.")[2]
    name = f"{name} ({line_text(code.co_filename, code.co_firstlineno)})"
    return Compiled(code, name, parts, returned, call.caller)


_NUMBERS = bool, int, float, complex


def _leaf(path: str, leaf: Leaf) -> ArgumentPart:
    leaf_type = _type_under_jit(leaf)
    shown = leaf_type.without_weak + (" (weak)" if leaf_type.weak else "")
    return ArgumentPart(shown, (leaf_type,), _made(path, leaf), leaf_type)


def _made(path: str, value: Any) -> Made | None:
    """How a leaf or a constant came to be."""
    number = RECORD.recorder.number(keys(path)[-1], value)
    return number or made_of(value)


def _type_under_jit(leaf: Leaf) -> LeafType:
    return traced_type(leaf) or LeafType(leaf.dtype)


def _returned(
    call: CompilingCall, leaves: dict[str, Leaf]
) -> Iterator[tuple[str, ReturnedLeaf]]:
    """The leaves that a program gives back in another type.

    An argument comes back where as many results in a row have the shapes of its leaves,
    and the first its path.
    """
    results, graph, taken = open_jaxpr(call.jaxpr).outvars, Graph(call.jaxpr), set[int]()
    shapes = [each.aval.shape for each in results]
    first = 1 + (call.wrapper == "equinox")  # whose own function returns a marker as well
    words = [keys(name)[first:] for name in call.names("result_paths")]
    is_sorted = call.wrapper == "flax"  # by it, in each argument, which it gives back
    for place, (_, group) in enumerate(itertools.groupby(leaves, parameter)):
        paths = sorted(group, key=_in_order) if is_sorted else [*group]
        own, inner = [np.shape(leaves[path]) for path in paths], keys(paths[0])[1:]
        starts = (
            number
            for number in range(len(shapes))
            if number not in taken and shapes[number : number + len(own)] == own
            # Shapes alone may be anything's.
            if is_sorted
            or words[number] in (inner, [str(place), *inner])
            or (own[1:] and words[number][-len(inner) :] == inner)
        )
        start = next(starts, len(shapes))
        taken |= {*range(start, start + len(own))}
        for path, number in zip(paths, range(start, len(shapes))):
            before, after = (
                _type_under_jit(leaves[path]),
                _type_under_jit(results[number].aval),
            )
            if after != before:
                output = graph.outputs[number]
                name = "weak_type" if before.dtype == after.dtype else "dtype"
                matches = Has(name, getattr(graph.avals[output], name))
                item = "".join(words[number][: len(words[number]) - len(keys(path)) + 1])
                is_item = item.isdigit() and not is_sorted
                lines = why(graph, output, matches)
                yield path, ReturnedLeaf(after, lines, int(item) if is_item else None)


def _in_order(path: str) -> list[int | str]:
    return [int(key) if key.isdigit() else key for key in keys(path)]


_PLAIN = (*_NUMBERS, str, bytes, type(None))
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, type)


def _constants(
    path: str, value: Any, around: tuple[Any, ...], leaves: dict[str, ArgumentPart]
) -> Iterator[tuple[str, ArgumentPart]]:
    """The constants in an argument, by path."""
    if path in leaves or is_array(value) or len(around) >= _DEPTH:
        return
    around = (value, *around)
    parts = [(_part(value, key), part) for key, part in items_of(value)]
    if type(value) in _PLAIN or is_a(value, np.dtype):
        shown = f"{value:.6g}" if type(value) is float else str(value)
        known = type(value), str(value)
        yield path, ArgumentPart(shown[:20], known, _made(path, value))
    elif not parts and type(value) not in _FUNCTIONS and _is_compared_by_parts(value):
        fields = fields_of(value).items()
        parts = [(f".{key}", part) for key, part in fields if key[:1] != "_"]
    elif not parts and not is_a(value, (dict, list, tuple)):
        made = next(filter(None, map(RECORD.recorder.made, around)), None)
        is_bound = type(value) is MethodType  # which is another object each time
        known = (id(value.__self__), id(value.__func__)) if is_bound else id(value)
        yield path, ArgumentPart(type(value).__name__, known, made, is_object=True)
    for key, part in parts:
        yield from _constants(path + key, part, around, leaves)


def _part(holder: Any, key: object) -> str:
    is_field = type(key) is str and issubclass(type(holder), tuple)
    return f".{key}" if is_field else f"[{key!r}]" if type(key) in _PLAIN else "[...]"


def _is_compared_by_parts(value: Any) -> bool:
    """Whether JAX takes an object apart, or its class says what equals it."""
    if is_in_place(value) or static(type(value), "__eq__") is not object.__eq__:
        return True
    return not tree_util.all_leaves((value,))
