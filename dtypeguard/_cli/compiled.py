"""Reads a call that compiles a function from JAX's frames.

JAX reports each compilation to listeners (`jax.monitoring`) in the thread that compiles,
and the call that led there stands on the stack with its function and arguments. So nothing
of JAX's is replaced, and a compiled function costs nothing. `jax_explain_cache_misses`
reports in words that differ between releases and crash in the oldest, also reports the
bodies of loops, and compares with the wrong call where static arguments differ.

JAX's frames are known by the name of one function and of its variables. A release that
changes them leaves the report empty, and nothing else.
"""

import ast
import functools
import inspect
import re
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import NamedTuple

import numpy as np
from jax import tree_util

from .._carry.modules import spread
from .._leaves.dtypes import is_array, is_python_number, is_weak
from .._leaves.internals import COMPILING, STATEFUL
from .._leaves.paths import keys
from .._leaves.rows import Type, type_of
from .._leaves.types import Args, Function, Jaxpr, Kwargs, Leaf, PyTree
from .._lines.compiled import KeptProgram, first_line, kept
from .._lines.fed import parameter
from .._lines.made import Made
from .._lines.record import made_of, of_number, of_object, recorded
from .._source.files import is_installed, is_users, line_text, package
from .._source.inert import fields_of
from .._source.origin import Origin, origin_of_frame
from .._source.syntax import parsed

_WRAPPERS = ("equinox", "flax", *STATEFUL)  # whose `jit` wraps JAX's


class CompiledCall(NamedTuple):
    """A call that compiles a function.

    Attributes:
        key: the function that JAX was given, by which it keeps what it compiled.
        function: the function that the user gave to `jit`.
        args: its arguments by position.
        kwargs: its arguments by name.
        traced: JAX's names of the traced leaves, such as "state['w']".
        wrapper: the package whose `jit` it is, if it is not JAX's.
        callers: the frames of others than JAX and the wrapper that led here, inside out.
        jaxpr: of the program; None if no frame has it.
        frames: of JAX, the outermost in which it is compiled, and its callers, inside out.
    """

    key: Function
    function: Function
    args: Args
    kwargs: Kwargs
    traced: tuple[str, ...]
    wrapper: str
    callers: list[FrameType]
    jaxpr: Jaxpr | None = None
    frames: Sequence[FrameType] = ()


class LeafOfCall(NamedTuple):
    """A leaf of an argument, without its value.

    Attributes:
        type: its dtype and whether it is weak; of one that is static, its class.
        shape: of an array.
        is_static: whether its value is a constant of the program.
        value: of a static one a hash.
        shown: of a static number its text.
        has_identity: of a static one, whether it equals only itself.
    """

    type: Type
    shape: tuple[int, ...] = ()
    is_static: bool = False
    value: int = 0
    shown: str = ""
    has_identity: bool = False


class Compiled(NamedTuple):
    """What a function was compiled for.

    Attributes:
        rest: all but the leaves: structure, and the function.
        leaves: those of the arguments, by path.
        positions: of the arguments of the leaves, by path.
        begun: the lines that made weakly typed leaves, by path.
        made: how others were made, as far as that was recorded, by path.
        caller: the line that called it.
        program: the program, if it is kept.
    """

    rest: tuple[object, ...]
    leaves: dict[str, LeafOfCall]
    positions: dict[str, int]
    begun: dict[str, Origin]
    made: dict[str, Made]
    caller: str
    program: KeptProgram | None = None


def call_of(frames: Iterable[FrameType]) -> CompiledCall | None:
    """The call that compiles, from the frames inside of it and around it, inside out."""
    traced, jaxpr, left = (), None, iter(frames)
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
    wrapper = package(file_of(key))
    wrapper = wrapper if wrapper in _WRAPPERS else ""
    around, callers = [frame, *left], []
    for frame in around[1:]:
        if callers or not wrapper or package(frame.f_code.co_filename) != wrapper:
            callers += [frame] if is_users(frame.f_code.co_filename) else []
            continue  # to read a user's variables would keep them alive
        wrapping = frame.f_locals.get("self")
        if wrapping is not None and hasattr(wrapping, "__wrapped__"):
            variables = frame.f_locals
            found = wrapping.__wrapped__, variables["args"], variables["kwargs"]
    return CompiledCall(key, *found, tuple(traced), wrapper, callers, jaxpr, around)


def is_listed(call: CompiledCall) -> bool:
    """Whether a function is the user's, or a package's that the user called."""
    file = file_of(unwrapped(call.function))
    is_theirs = is_installed(file) and any(
        is_installed(frame.f_code.co_filename) for frame in call.callers[:1]
    )
    return is_users(file) and not is_theirs


_LOOPS = {"while": "while_loop", "scan": "scan", "cond": "cond"}


def eager(call: CompiledCall) -> tuple[str, str, tuple[object, ...]] | None:
    """A loop, or branches, outside of `jit`: the name, the line, and the types.

    JAX keeps what it compiled by the functions of the loop.
    """
    for frame in call.frames[:_FRAMES] if call.callers else ():
        name = getattr(frame.f_locals.get("prim"), "name", "")
        if name in _LOOPS:
            given = frame.f_locals.get("args", ())
            types = tuple(str(getattr(x, "aval", type(x))) for x in given)
            origin = origin_of_frame(call.callers[0])
            return _LOOPS[name], origin.place, types
    return None


_FRAMES = 5  # of JAX, among which the primitive is


def compiled(call: CompiledCall) -> tuple[Compiled, dict[str, Leaf]]:
    """What a call compiles, and the leaves of its arguments by path."""
    named = _arguments(call)
    traced = {*map(parameter, call.traced)} & {*named} or {*named}
    pairs, treedef = tree_util.tree_flatten_with_path(spread(named))
    order = [name for name in named if name not in ("self", "cls")]
    names = list(named)  # a dict is flattened in the order of its keys
    pairs.sort(key=lambda pair: names.index(pair[0][0].key))
    leaves, values, positions = {}, {}, {}
    for (name, *inside), leaf in pairs:
        path = f"{name.key}{tree_util.keystr(tuple(inside))}"
        is_constant = call.wrapper == "equinox" and is_python_number(leaf)
        leaves[path] = _leaf(leaf, name.key in traced and not is_constant)
        values[path] = leaf
        positions[path] = order.index(name.key) if name.key in order else -1
    users = [frame for frame in call.callers if not package(frame.f_code.co_filename)]
    caller = str(origin_of_frame(users[0])) if users else ""
    begun = _begun(call, named, values, leaves) if users[:1] == call.callers[:1] else {}
    rest = _hash(call.function), treedef
    types = {path: leaf.type for path, leaf in leaves.items() if not leaf.is_static}
    program = kept(call.jaxpr, types, call.wrapper)
    pairs = ((path, made_of(value)) for path, value in values.items() if path in types)
    made = {path: each for path, each in pairs if each}
    return Compiled(rest, leaves, positions, begun, made, caller, program), values


def _arguments(call: CompiledCall) -> dict[str, PyTree]:
    try:
        return dict(
            inspect.signature(call.function).bind(*call.args, **call.kwargs).arguments
        )
    except (TypeError, ValueError):
        return {"args": call.args, "kwargs": call.kwargs}


def _leaf(leaf: Leaf, is_traced: bool) -> LeafOfCall:
    type_ = type_of(leaf) or (Type(str(leaf.dtype)) if is_array(leaf) else None)
    if type_ and is_traced:
        return LeafOfCall(type_, np.shape(leaf))
    shown = repr(leaf) if is_python_number(leaf) else ""
    shown = f"{leaf:.6g}" if len(shown) > 8 and isinstance(leaf, float) else shown
    equals_itself = type(leaf).__eq__ is object.__eq__
    about = Type(type(leaf).__name__), np.shape(leaf) if is_array(leaf) else ()
    return LeafOfCall(*about, True, _hash(leaf), shown, equals_itself)


def _begun(
    call: CompiledCall,
    named: dict[str, PyTree],
    values: dict[str, Leaf],
    leaves: dict[str, LeafOfCall],
) -> dict[str, Origin]:
    """The lines that made the weakly typed leaves, and the static numbers."""
    begun: dict[str, Origin] = {}
    order = [name for name in named if name not in ("self", "cls")]
    for name, value in named.items():
        place = order.index(name) if name in order else None
        inside = [path for path in leaves if parameter(path) == name]
        weak = [path for path in inside if is_weak(values[path])]
        line = first_line(call.callers[0], place, name, value) if weak else None
        for path in weak:
            made = recorded(values[path]).root or line
            if made is None and is_python_number(values[path]):
                made = of_number(keys(path)[-1], values[path])
            begun |= {path: made} if made else {}
    return begun


def _hash(leaf: Leaf) -> int:
    try:
        return hash(leaf)
    except TypeError:
        return id(leaf)


def unwrapped(function: Function) -> Function:
    owner = getattr(function, "__self__", None)
    if package(file_of(function)) in STATEFUL:  # which jits a method of its own
        function = getattr(owner, "fun", function)
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if not hasattr(function, "__code__"):  # an object with `__call__`
        function = vars(type(function)).get("__call__", function)
    return inspect.unwrap(function)


def name_of(function: Function, line: str = "") -> str:
    """The name of a function and a line: that of its definition, or another."""
    inner = unwrapped(function)
    name = getattr(inner, "__qualname__", type(function).__name__)
    name = name.rpartition("<locals>.")[2]
    if code := getattr(inner, "__code__", None):
        line = line or line_text(file_of(inner), code.co_firstlineno)
    return f"{name} ({line})" if line else name


def line_of_jit(call: CompiledCall) -> str:
    """The line that jits the function; empty if it decorates it, or is not found.

    Of several the last one before the call.
    """
    inner = unwrapped(call.function)
    code, user = inner.__code__, call.callers[0]
    is_it = lambda node: (
        node.lineno == code.co_firstlineno
        if isinstance(node, ast.Lambda)
        else getattr(node, "id", getattr(node, "attr", "")) == code.co_name
    )
    for file in dict.fromkeys((user.f_code.co_filename, code.co_filename)):
        module = parsed(file)
        lines = [
            node.lineno
            for node in (ast.walk(module) if module else ())
            if isinstance(node, ast.Call) and _JIT.fullmatch(ast.unparse(node.func))
            if any(is_it(part) for given in node.args for part in ast.walk(given))
        ]
        before = [line for line in lines if line <= user.f_lineno]
        if file == user.f_code.co_filename and before:
            lines = [max(before)]
        if len(lines) == 1:
            return line_text(file, lines[0])
    return ""


def line_of_object(call: CompiledCall, path: str) -> Origin | None:
    """The user's line that gave an object among the arguments to a variable."""
    holder: object = _arguments(call)
    for name in keys(path):
        holder = (holder if type(holder) is dict else fields_of(holder)).get(name)
    return of_object(holder)


_JIT = re.compile(r"(.*\.)?(\w+_)?(p?jit|pmap)")


def file_of(function: Function) -> str:
    """The file of a function or of the `__call__` of an object; empty if it has none."""
    call = function if hasattr(function, "__code__") else type(function).__call__
    return getattr(getattr(call, "__code__", None), "co_filename", "")
