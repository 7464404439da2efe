"""Finds the functions that were compiled again only because an argument changed its type.

JAX reports each compilation to listeners (`jax.monitoring`) in the thread that compiles,
and the call that led there stands on the stack with its function and arguments. So nothing
of JAX's is replaced, and a compiled function costs nothing. `jax_explain_cache_misses`
reports in words that differ between releases and crash in the oldest, also reports the
bodies of loops, and compares with the wrong call where static arguments differ.

JAX's frames are known by the name of one function and of its variables. A release that
changes them leaves the report empty, and nothing else.
"""

import functools
import inspect
import re
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import NamedTuple

import numpy as np
from jax import tree_util

from .._carry.modules import spread
from .._leaves.dtypes import is_array, is_python_number
from .._leaves.internals import COMPILING
from .._leaves.rows import columns, type_name
from .._leaves.types import Args, Function, Kwargs, Leaf
from .._source.files import is_installed, is_users, package, short_path
from .._source.origin import origin_of_frame

_MOST = 20  # leaves of one function that are listed
_WRAPPERS = ("equinox", "flax")  # whose `jit` wraps JAX's


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
    """

    key: Function
    function: Function
    args: Args
    kwargs: Kwargs
    traced: tuple[str, ...]
    wrapper: str
    callers: list[FrameType]


class Compiled(NamedTuple):
    """The arguments that a function was compiled for.

    Attributes:
        rest: all but the types: structure, shapes, and the values of static arguments.
        types: the types of the traced leaves, by path.
        caller: the line that called it.
    """

    rest: tuple[object, ...]
    types: dict[str, str]
    caller: str


class Change(NamedTuple):
    """A leaf whose type changed from one call to another, and the lines of the calls."""

    before: str
    after: str
    calls: str

    def __str__(self) -> str:
        return f"{self.before} -> {self.after}{self.calls}"


class Recompiled:
    """Records what functions are compiled for."""

    def __init__(self):
        self._found: dict[str, dict[str, Change]] = {}
        self._earlier = weakref.WeakKeyDictionary[Function, list[Compiled]]()

    def record(self, frame: FrameType) -> None:
        """Records the call that compiles, if a frame inside of it belongs to one."""
        call = _call(frame)
        if call is not None and _is_listed(call):
            self._record(call)

    def lines(self, is_whole: bool = False) -> list[str]:
        """The report; empty if no function was compiled again for its types."""
        if not self._found:
            return []
        n = len(self._found)
        lines = [
            f"dtypeguard run: {n} function{'s were' if n > 1 else ' was'} compiled again "
            "only because the type of an argument changed."
        ]
        for function, leaves in self._found.items():
            listed = columns([(x, str(y)) for x, y in leaves.items()][:_MOST])
            more = len(leaves) - len(listed)
            lines += [f"  {function}", *(f"    {line}" for line in listed)]
            lines += [f"    and {more} more"] if more else []
        changes = [pair for leaves in self._found.values() for pair in leaves.items()]
        return [*lines, *_advice(changes)]

    def _record(self, call: CompiledCall) -> None:
        now = _compiled(call)
        earlier = self._earlier.setdefault(call.key, [])
        alike = (each for each in reversed(earlier) if each.rest == now.rest)
        least = min((_changes(each, now) for each in alike), key=len, default=None)
        earlier.append(now)
        if least:
            self._found.setdefault(_name(call.function), {}).update(least)


def _call(frame: FrameType | None) -> CompiledCall | None:
    """The call that compiles, of which a frame is the innermost."""
    traced = ()
    while frame is not None and not is_users(frame.f_code.co_filename):
        variables = frame.f_locals
        jaxpr = variables.get("jaxpr")
        info = getattr(getattr(jaxpr, "jaxpr", jaxpr), "debug_info", None)
        traced = getattr(info, "arg_names", None) or traced
        if frame.f_code.co_name in COMPILING:
            break
        frame = frame.f_back
    else:  # compiled ahead of time, or a backward pass
        return None
    key = variables["fun"] if "fun" in variables else variables["jit_info"].fun
    found = key, variables["args"], variables["kwargs"]
    wrapper = package(_file(key))
    wrapper = wrapper if wrapper in _WRAPPERS else ""
    callers = []
    while (frame := frame.f_back) is not None:
        if callers or not wrapper or package(frame.f_code.co_filename) != wrapper:
            callers += [frame] if is_users(frame.f_code.co_filename) else []
            continue  # to read a user's variables would keep them alive
        wrapping = frame.f_locals.get("self")
        if wrapping is not None and hasattr(wrapping, "__wrapped__"):
            variables = frame.f_locals
            found = wrapping.__wrapped__, variables["args"], variables["kwargs"]
    return CompiledCall(key, *found, tuple(traced), wrapper, callers)


def _is_listed(call: CompiledCall) -> bool:
    """Whether a function is the user's, or a package's that the user called."""
    file = _file(_unwrapped(call.function))
    is_theirs = is_installed(file) and any(
        is_installed(frame.f_code.co_filename) for frame in call.callers[:1]
    )
    return is_users(file) and not is_theirs


def _compiled(call: CompiledCall) -> Compiled:
    try:
        bound = inspect.signature(call.function).bind(*call.args, **call.kwargs)
        named = dict(bound.arguments)
    except (TypeError, ValueError):
        named = {"args": call.args, "kwargs": call.kwargs}
    traced = {re.split(r"\W", path)[0] for path in call.traced} & {*named} or {*named}
    leaves, treedef = tree_util.tree_flatten_with_path(spread(named))
    types, rest = {}, []
    for (name, *path), leaf in leaves:
        dtype = type_name(leaf) or (str(leaf.dtype) if is_array(leaf) else "")
        is_constant = call.wrapper == "equinox" and is_python_number(leaf)
        if dtype and name.key in traced and not is_constant:
            types[f"{name.key}{tree_util.keystr(tuple(path))}"] = dtype
            rest.append(np.shape(leaf))
        else:
            rest.append((type(leaf), _value(leaf)))
    callers = (frame for frame in call.callers if not package(frame.f_code.co_filename))
    caller = next((str(origin_of_frame(frame)) for frame in callers), "")
    return Compiled((_value(call.function), treedef, *rest), types, caller)


def _value(leaf: Leaf) -> int:
    try:
        return hash(leaf)
    except TypeError:
        return id(leaf)


def _changes(before: Compiled, now: Compiled) -> dict[str, Change]:
    """The types that changed from one call to another."""
    lines = " then ".join(dict.fromkeys(filter(None, (before.caller, now.caller))))
    calls = f"  called at {lines}" if lines else ""
    return {
        path: Change(old, now.types[path], calls)
        for path, old in before.types.items()
        if old != now.types[path]
    }


def _advice(changes: Iterable[tuple[str, Change]]) -> list[str]:
    advice, is_weak, is_other = [], False, False
    for path, (before, after, _) in changes:
        if before == f"{after} (weak)" or after == f"{before} (weak)":
            is_weak = True
        elif before.endswith(" (weak)"):
            dtype = after.removesuffix(" (weak)")
            advice.append(f"Start {path} as {dtype}: jnp.asarray(x, jnp.{dtype}).")
        else:
            is_other = True
    if is_weak:
        advice.append(
            "Weak types come from Python numbers: give jax.Arrays from the first call on, "
            "such as dtypeguard.strong(state)."
        )
    if is_other:
        advice.append(
            "Where a step gives back another dtype than it was given: "
            "dtypeguard.guard_step(step), or dtypeguard.guard(opt) for an optimizer."
        )
    return advice


def _unwrapped(function: Function) -> Function:
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if not hasattr(function, "__code__"):  # an object with `__call__`
        function = vars(type(function)).get("__call__", function)
    return inspect.unwrap(function)


def _name(function: Function) -> str:
    inner = _unwrapped(function)
    name = getattr(inner, "__qualname__", type(function).__name__)
    name = name.rpartition("<locals>.")[2]
    code = getattr(inner, "__code__", None)
    return f"{name} ({short_path(_file(inner))}:{code.co_firstlineno})" if code else name


def _file(function: Function) -> str:
    """The file of a function or of the `__call__` of an object; empty if it has none."""
    call = function if hasattr(function, "__code__") else type(function).__call__
    return getattr(getattr(call, "__code__", None), "co_filename", "")
