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
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
from jax import tree_util

from .._carry.modules import is_in_place, spread
from .._leaves.dtypes import is_python_number
from .._leaves.groups import keys, parameter
from .._leaves.internals import COMPILING
from .._leaves.rows import Type, type_of
from .._leaves.types import Args, Function, Jaxpr, Kwargs, Leaf, PyTree
from .._program.graph import Graph, open_jaxpr
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
from .._source.origin import Frame, Origin, Why, origin_of_frame
from .record import made_of, made_of_number, object_lines
from .values import Made, is_array
from .why import Ends, Has, why

_WRAPPERS = "equinox", "flax"  # whose `jit` wraps JAX's
_DEPTH, _MOST_PARTS = 8, 20_000  # of arguments that are looked at for static parts


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
    callers = list[FrameType]()
    for outer in left:
        if callers or not wrapper or package(outer.f_code.co_filename) != wrapper:
            if is_users(outer.f_code.co_filename):
                callers.append(outer)
            continue
        wrapping: Any = outer.f_locals.get("self")
        if package_of(type(wrapping)) == wrapper and hasattr(wrapping, "__wrapped__"):
            variables = outer.f_locals
            found = wrapping.__wrapped__, variables["args"], variables["kwargs"]
    return CompilingCall(key, *found, jaxpr, wrapper, callers)


class Static(NamedTuple):
    """A part of the arguments that is a constant of the program."""

    known: Any  # what it equals others by: its type and value, or a weak reference
    shown: str
    is_object: bool = False  # which equals only itself
    lines: Sequence[Frame] = ()  # those that made it, or what holds it

    def is_same(self, other: "Static") -> bool:
        """Whether another call had the same; no comparison of the user's runs."""
        pair = self.known, other.known
        if not all(type(x) is weakref.ref for x in pair):
            return pair[0] == pair[1]  # of Python's own types
        own, others = (x() for x in pair)
        return own is not None and own is others


Described = tuple[Type, tuple[int, ...]]  # a leaf: its type and its shape


class Compiled(NamedTuple):
    """What a function was compiled for, by the paths of its leaves and constants."""

    code: CodeType
    name: str  # with the line of its definition
    leaves: dict[str, Described]
    statics: dict[str, Static]
    made: dict[str, Made]  # as far as that was recorded
    returned: "dict[str, Returned]"  # in another type
    caller: Origin | None

    def described(self, path: str) -> str:
        """A leaf or a constant as the report has it."""
        if path in self.statics:
            return self.statics[path].shown
        if path not in self.leaves:
            return "(absent)"
        type_, shape = self.leaves[path]
        return f"{type_.name}[{','.join(map(str, shape))}]{' (weak)' * type_.is_weak}"

    def shape(self, path: str) -> tuple[int, ...] | None:
        """The shape of a leaf; that of all keys is one."""
        type_, shape = self.leaves.get(path, (None, None))
        return () if type_ and type_.is_key else shape

    def why(self, path: str) -> Why:
        """The lines that made a leaf, but for the call itself."""
        why = self.made[path].why() if path in self.made else Why()
        is_called = why.root and self.caller and str(why.root.users) == str(self.caller)
        return Why() if is_called else why


class Returned(NamedTuple):
    """What a leaf comes back as: its type, the lines behind that, the item of a tuple."""

    type: Type
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
    order = list(named)  # a dict is flattened in the order of its keys
    pairs = tree_util.tree_flatten_with_path(spread(named))[0]
    pairs.sort(key=lambda pair: order.index(pair[0][0].key))
    leaves, made = dict[str, Described](), dict[str, Made]()
    for (name, *inside), leaf in pairs:
        is_constant = call.wrapper == "equinox" and is_python_number(leaf)
        is_typed = is_array(leaf) or type(leaf) in (bool, int, float, complex)
        if is_typed and name.key in traced and not is_constant:
            path = f"{name.key}{tree_util.keystr(tuple(inside))}"
            leaves[path] = _type(leaf), np.shape(leaf)
            number = is_python_number(leaf) and made_of_number(keys(path)[-1], leaf)
            if known := number or made_of(leaf):
                made[path] = known
    statics = dict(_static_parts(named, leaves))
    name = code.co_qualname.rpartition("<locals>.")[2]
    name = f"{name} ({line_text(code.co_filename, code.co_firstlineno)})"
    returned = dict(_returned(call, leaves)) if call.jaxpr else {}
    return Compiled(code, name, leaves, statics, made, returned, call.caller)


def _returned(
    call: CompilingCall, leaves: dict[str, Described]
) -> Iterator[tuple[str, Returned]]:
    """The leaves that a program gives back in another type, by the names of its results."""
    jaxpr, places = open_jaxpr(call.jaxpr), [*dict.fromkeys(map(parameter, leaves))]
    names = dict(zip(leaves, leaves))
    if call.wrapper == "flax":  # which names and sorts the leaves of each argument anew
        order = lambda path: (places.index(parameter(path)), _words(path))
        names = dict(zip(sorted(leaves, key=order), call.names("arg_names")))
    results = dict[tuple[object, ...], list[tuple[list[str], int]]]()  # by their ends
    for number, (first, *words) in enumerate(map(_words, call.names("result_paths"))):
        if call.wrapper == "equinox":  # its own function returns a marker as well
            words = words[1:]
        for end in range(len(words) + 1):
            key = (*words[end:], jaxpr.outvars[number].aval.shape)
            results.setdefault(key, []).append(([first, *words[:end]], number))
    ranked = list[tuple[bool, int, int, str, int, str]]()
    for path, (_, shape) in leaves.items():
        _, *inner = _words(names.get(path, path))
        place = places.index(parameter(path)) - ("self" in places)
        for outer, number in results.get((*inner, shape), ()):
            is_own = outer[1:] in ([], [str(place)])
            if inner or is_own:  # a shape alone may be anything's
                item = "".join(outer[1:2])
                ranked.append((not is_own, len(outer), place, item, number, path))
    graph, seen = Graph(call.jaxpr), set[object]()
    for *_, item, number, path in sorted(ranked):
        if not seen.isdisjoint({number, path}):  # a result comes back as one leaf alone
            continue
        seen |= {number, path}
        before, after = leaves[path][0], _type(jaxpr.outvars[number].aval)
        if after != before:
            output, every = graph.outputs[number], (1 << len(graph.inputs)) - 1
            matches = Has("dtype", graph.avals[output].dtype)
            if before.name == after.name:
                matches = Has("weak_type", after.is_weak)
            lines = why(graph, output, matches, every, Ends())
            yield path, Returned(after, lines, int(item) if item.isdigit() else None)


def _words(path: str) -> list[str]:
    """The parts of a path without its signs, and without the `value` of a variable."""
    words = keys(path)
    return words[:-1] if {*words[1:][-1:]} & {"value", "raw_value"} else words


def _type(leaf: Leaf) -> Type:
    return type_of(leaf) or Type(str(leaf.dtype))


_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, type)


def _static_parts(
    named: dict[str, PyTree], leaves: dict[str, Any]
) -> Iterator[tuple[str, Static]]:
    """The constants among arguments, by path."""
    stack = [(name, value, ()) for name, value in reversed(named.items())]
    # What is held in a node without keys has another path for JAX.
    unnamed = {parameter(path) for path in leaves if "<flat index" in path}
    for _ in range(_MOST_PARTS):
        if not stack:
            return
        path, value, around = stack.pop()
        around = (value, *around)
        if path in leaves or is_array(value) or len(around) > _DEPTH:
            continue
        if type(value) in _PLAIN or is_a(value, np.dtype):
            if parameter(path) not in unnamed:
                shown = f"{value:.6g}" if type(value) is float else str(value)
                number = is_python_number(value) and made_of_number(keys(path)[-1], value)
                lines = number.through if number else ()
                yield path, Static((type(value), str(value)), shown[:20], False, lines)
            continue
        parts = [(_part(value, key), part) for key, part in items_of(value)]
        if not parts and type(value) not in _FUNCTIONS and _is_compared_by_parts(value):
            fields = fields_of(value).items()
            parts = [(f".{key}", part) for key, part in fields if key[:1] != "_"]
        elif not parts and not is_a(value, (dict, list, tuple)):
            lines = next(filter(None, map(object_lines, around)), ())
            yield path, Static(_reference(value), type(value).__name__, True, lines)
        stack += [(path + key, part, around) for key, part in reversed(parts)]


def _part(holder: Any, key: object) -> str:
    is_field = type(key) is str and issubclass(type(holder), tuple)
    return f".{key}" if is_field else f"[{key!r}]" if type(key) in _PLAIN else "[...]"


def _is_compared_by_parts(value: Any) -> bool:
    """Whether JAX takes an object apart, or its class says what equals it."""
    if is_in_place(value) or static(type(value), "__eq__") is not object.__eq__:
        return True
    return not tree_util.all_leaves((value,))


def _reference(value: Any) -> Any:
    if type(value) is MethodType:  # which is another object each time
        return id(value.__self__), id(value.__func__)
    try:
        return weakref.ref(value)
    except TypeError:
        return id(value)
