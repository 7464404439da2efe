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
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
from jax import tree_util

from .._carry.modules import is_in_place, spread
from .._leaves.dtypes import is_python_number
from .._leaves.internals import COMPILING
from .._leaves.rows import Type, type_of
from .._leaves.types import Args, Function, Jaxpr, Kwargs, Leaf, PyTree
from .._program.graph import Graph
from .._source.files import is_installed, is_users, line_text, package
from .._source.inert import code_of, fields_of, is_a, items_of, package_of, static
from .._source.origin import Origin, Why, origin_of_frame
from .fed import Fed, parameter, returned_as, words
from .held import is_array
from .made import Made
from .record import made_of, of_number, of_object, recorded
from .why import Ends, Has, why

_WRAPPERS = "equinox", "flax"  # whose `jit` wraps JAX's
_DEPTH, _MOST_PARTS = 8, 20_000  # of arguments that are looked at for static parts


class CompilingCall(NamedTuple):
    """A call that compiles a function.

    Attributes:
        key: the function that JAX was given; `function` is the one that the user gave.
        traced: JAX's names of the traced leaves, such as "state['w']".
        wrapper: the package whose `jit` it is, if it is not JAX's.
        callers: the frames of others than JAX and the wrapper that led here, inside out.
        loop: the name of the loop that is compiled by itself, if it is one.
    """

    key: Function
    function: Function
    args: Args
    kwargs: Kwargs
    traced: tuple[str, ...]
    wrapper: str
    callers: list[FrameType]
    jaxpr: Jaxpr | None = None
    loop: str = ""

    @property
    def is_listed(self) -> bool:
        """Whether a function is the user's, or a package's that the user called."""
        file = _file_of(self.function)
        is_theirs = is_installed(file) and any(
            is_installed(frame.f_code.co_filename) for frame in self.callers[:1]
        )
        return is_users(file) and not is_theirs

    @property
    def name(self) -> str:
        """The name of the function and the line of its definition."""
        code = code_of(_unwrapped(self.function))
        if code is None:
            return "a function in C"
        name = code.co_qualname.rpartition("<locals>.")[2]
        return f"{name} ({line_text(code.co_filename, code.co_firstlineno)})"

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
    traced, jaxpr, loop, left = (), None, "", iter(frames)
    for frame in left:
        if is_users(frame.f_code.co_filename):
            return None  # compiled ahead of time, or a backward pass
        variables = frame.f_locals
        known = variables.get("jaxpr")
        info = getattr(getattr(known, "jaxpr", known), "debug_info", None)
        if names := getattr(info, "arg_names", None):
            traced, jaxpr = names, known
        if frame.f_code.co_name in COMPILING:
            break
    else:
        return None
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
            elif not callers:  # to read a user's variables would keep them alive
                loop = _LOOPS.get(getattr(outer.f_locals.get("prim"), "name", ""), loop)
            continue
        wrapping: Any = outer.f_locals.get("self")
        if package_of(type(wrapping)) == wrapper and hasattr(wrapping, "__wrapped__"):
            variables = outer.f_locals
            found = wrapping.__wrapped__, variables["args"], variables["kwargs"]
    return CompilingCall(key, *found, tuple(traced), wrapper, callers, jaxpr, loop)


_LOOPS = {"while": "while_loop", "scan": "scan", "cond": "cond"}


def _unwrapped(function: Any) -> Any:
    """The function in partials and in wrappers that say what they wrap."""
    for _ in range(_DEPTH):
        if type(function) is functools.partial:
            function = function.func
            continue
        wrapper = function.__func__ if type(function) is MethodType else function
        inner = fields_of(wrapper).get("__wrapped__")
        if inner is None:
            break
        function = inner
    return function


def _file_of(function: Function) -> str:
    code = code_of(_unwrapped(function))
    return code.co_filename if code else ""


class Static(NamedTuple):
    """A part of the arguments that is a constant of the program.

    Attributes:
        known: what it equals others by: its type and value, or a weak reference.
        shown: its text, or the name of its class.
        is_object: whether it equals only itself.
    """

    known: Any
    shown: str
    is_object: bool = False

    def is_same(self, other: "Static") -> bool:
        """Whether another call had the same; no comparison of the user's runs."""
        pair = self.known, other.known
        if not all(type(x) is weakref.ref for x in pair):
            return pair[0] == pair[1]  # of Python's own types
        own, others = (x() for x in pair)
        return own is not None and own is others


class Compiled(NamedTuple):
    """What a function was compiled for.

    Attributes:
        leaves: the types and shapes of what is traced, by path.
        statics: the constants of the program, by path.
        made: how leaves came to be, as far as that was recorded, by path.
        numbers: the lines that gave Python numbers, by path.
        returned: the types that leaves come back with, the lines behind that, and the items
            of the returned tuple that they are, by path.
    """

    leaves: dict[str, tuple[Type, tuple[int, ...]]]
    statics: dict[str, Static]
    made: dict[str, Made]
    numbers: dict[str, Origin]
    returned: dict[str, tuple[Type, Why, int | None]]
    caller: Origin | None


class Given(NamedTuple):
    """The values of a call while it compiles: leaves, and constants with their holders."""

    leaves: dict[str, Leaf]
    statics: dict[str, Sequence[Any]]

    def line_of_object(self, path: str) -> Origin | None:
        """The line that made a constant, or what holds it."""
        return next(filter(None, map(of_object, self.statics[path])), None)


def compiled(call: CompilingCall) -> tuple[Compiled, Given]:
    """What a call compiles, and its values."""
    named = call.arguments()
    traced = {*map(parameter, call.traced)} & {*named} or {*named}
    names = list(named)  # a dict is flattened in the order of its keys
    pairs = tree_util.tree_flatten_with_path(spread(named))[0]
    pairs.sort(key=lambda pair: names.index(pair[0][0].key))
    leaves: dict[str, tuple[Type, tuple[int, ...]]] = {}
    values: dict[str, Leaf] = {}
    for (name, *inside), leaf in pairs:
        is_constant = call.wrapper == "equinox" and is_python_number(leaf)
        is_typed = is_array(leaf) or type(leaf) in (bool, int, float, complex)
        if is_typed and name.key in traced and not is_constant:
            path = f"{name.key}{tree_util.keystr(tuple(inside))}"
            type_ = type_of(leaf) or Type(str(leaf.dtype))
            leaves[path], values[path] = (type_, np.shape(leaf)), leaf
    found = list(_static_parts(named, leaves))
    statics = {path: known for path, known, _ in found}
    holders = {path: around for path, _, around in found}
    made = {path: known for path, x in values.items() if (known := made_of(x))}
    numbers = {
        path: line
        for path, x in (*values.items(), *((p, around[0]) for p, around in holders.items()))
        if is_python_number(x) and (line := of_number(words(path)[-1], x))
    }
    returned = _returned(call, leaves, values)
    now = Compiled(leaves, statics, made, numbers, returned, call.caller)
    return now, Given(values, holders)


_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, type)


def _static_parts(
    named: dict[str, PyTree], leaves: dict[str, Any]
) -> Iterator[tuple[str, Static, Sequence[Any]]]:
    """The constants among arguments: path, what it equals others by, it and its holders."""
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
                yield path, Static((type(value), str(value)), shown[:20]), around
            continue
        parts = [(_part(value, key), part) for key, part in items_of(value)]
        if not parts and type(value) not in _FUNCTIONS and _is_compared_by_parts(value):
            fields = fields_of(value).items()
            parts = [(f".{key}", part) for key, part in fields if key[:1] != "_"]
        elif not parts and not is_a(value, (dict, list, tuple)):
            yield path, Static(_reference(value), type(value).__name__, True), around
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


class _ArgumentEnds(Ends):
    """What is known beyond a program that is compiled: its arguments."""

    def __init__(self, values: Sequence[Leaf]):
        self._values = values

    def given(self, number: int) -> Why:
        return Why(recorded(self._values[number]).root)


def _returned(
    call: CompilingCall, leaves: dict[str, Any], values: dict[str, Leaf]
) -> dict[str, tuple[Type, Why, int | None]]:
    """What a program gives leaves back as in another type, with the lines behind that."""
    jaxpr: Any = getattr(call.jaxpr, "jaxpr", call.jaxpr)
    info: Any = getattr(jaxpr, "debug_info", None)
    paths, results = (getattr(info, x, None) for x in ("arg_names", "result_paths"))
    if not (paths and results) or len(results) != len(jaxpr.outvars):
        return {}
    names, results = [*map(str, paths)], [*map(str, results)]
    paths, order = names, [*dict.fromkeys(map(parameter, leaves))]
    if not leaves.keys() >= set(names):  # Equinox and Flax give them names of their own
        paths = list(leaves)
        if call.wrapper == "flax":  # which sorts the leaves of each argument
            paths.sort(key=lambda path: (order.index(parameter(path)), words(path)))
        types = [type_of(x.aval) or Type(str(x.aval.dtype)) for x in jaxpr.invars]
        if types != [leaves[path][0] for path in paths]:
            return {}
    if call.wrapper == "equinox":  # its own function returns a marker as well
        results = [name.replace("result[1]", "result", 1) for name in results]
    names = names if call.wrapper == "flax" else paths
    places = [name for name in call.arguments() if name not in ("self", "cls")]
    outputs = [(type_of(x.aval), x.aval.shape) for x in jaxpr.outvars]
    fed = []
    for path, name in zip(paths, names):
        like = [n for n, (_, shape) in enumerate(outputs) if shape == leaves[path][1]]
        if parameter(path) in places:
            fed.append(Fed(name, places.index(parameter(path)), like))
    back, found, graph = returned_as(fed, results), {}, None
    ends = _ArgumentEnds([values[path] for path in paths])
    for number, (path, name) in enumerate(zip(paths, names)):
        before, after = leaves[path][0], outputs[back[name]][0] if name in back else None
        if after not in (None, before):
            graph = graph or Graph(call.jaxpr)
            output = graph.outputs[back[name]]
            matches = Has("dtype", graph.avals[output].dtype)
            if before.name == after.name:
                matches = Has("weak_type", after.is_weak)
            item = words(results[back[name]])[1:2]
            lines = why(graph, output, matches, 1 << number, ends)
            found[path] = after, lines, int(item[0]) if item and item[0].isdigit() else None
    return found
