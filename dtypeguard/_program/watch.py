"""Where the values were made that no equation makes: constants, as an update uses them.

A jaxpr has the value of `jnp.asarray(0.9)` and of a `np.float32(2)` that was closed over,
not the line that made it. Watching the calls from the user's code into JAX tells.
"""

import ast
import functools
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from .._leaves.dtypes import dtype_of, is_weak
from .._leaves.files import is_users
from .origins import Origin, origin_of_frame

_SCALARS = {bool, int, float, complex}


class Watch:
    """While entered, remembers where the arrays come from that JAX is given.

    It is a trace function (`sys.settrace`). Where there is one already, a debugger's say,
    it is left alone and nothing is remembered.
    """

    def __init__(self):
        self._made: dict[int, tuple[Any, Origin]] = {}  # kept alive, so that ids hold
        self._used: dict[tuple[str, int], list[tuple[Any, Origin]]] = {}
        self._watching = False

    def __enter__(self):
        self._watching = sys.gettrace() is None
        if self._watching:
            sys.settrace(self._call)
        return self

    def __exit__(self, *exception):
        if self._watching:
            sys.settrace(None)

    def maker(self, user: Origin, matches: Callable[[Any], bool]) -> Origin:
        """The line that made the constant of some type which the line `user` uses.

        That line itself if it makes it, or if nothing is known of it.
        """
        used = self._used.get((user.file, user.line), ())
        alike = [
            pair for pair in used if matches(_as_jax(pair[0])) and not is_weak(pair[0])
        ]
        # A tracer may be what the line itself has computed from the constant.
        constants = [pair for pair in alike if not isinstance(pair[0], Tracer)]
        makers = {maker for _, maker in constants or alike}
        if len(makers) > 1:  # the line itself computes with what another has made
            makers = {each for each in makers if each.line != user.line}
        return makers.pop() if len(makers) == 1 else user

    def made(self, value: Any) -> Origin | None:
        """The line that made an array, or the container that a Python scalar is in."""
        made = self._made.get(id(value))
        return made[1] if made else None

    def _call(self, frame: FrameType, event: str, arg: Any):
        back = frame.f_back
        if is_users(frame.f_code.co_filename):
            frame.f_trace_lines = False
            return self._return_from_user
        if back is None or not is_users(back.f_code.co_filename):
            return None
        for value in _arrays(frame.f_locals.values()):
            maker = self.made(value) or _binding(back, value)
            if maker is None and not isinstance(value, Tracer):
                maker = origin_of_frame(back)
            if maker is not None:  # else it is an argument of what is being traced
                key = back.f_code.co_filename, back.f_lineno
                self._used.setdefault(key, []).append((value, maker))
        frame.f_trace_lines = False
        return self._return_to_user

    def _return_to_user(self, frame: FrameType, event: str, arg: Any):
        back = frame.f_back
        if event == "return" and back is not None and _is_array(arg):
            self._made.setdefault(id(arg), (arg, origin_of_frame(back)))
        return self._return_to_user

    def _return_from_user(self, frame: FrameType, event: str, arg: Any):
        # Equal scalars may be one object, wherever they come from.
        if event == "return" and type(arg) not in _SCALARS and arg is not None:
            # A NamedTuple is made by code that has no file, or by JAX when it maps a tree,
            # a dataclass of flax by its own `replace`.
            maker: FrameType | None = frame
            while maker is not None and not _is_makers(maker, arg):
                maker = maker.f_back
            if maker is not None:
                origin = origin_of_frame(maker)
                self._made.setdefault(id(arg), (arg, origin))
                # The new updates and the new state are a pair for a moment only.
                pair = arg if type(arg) is tuple else ()
                for item in pair:
                    if isinstance(item, (tuple, list, dict)):
                        self._made.setdefault(id(item), (item, origin))
        return self._return_from_user


def _is_makers(frame: FrameType, made: Any) -> bool:
    """Whether a function is one that somebody wrote for what it makes."""
    name, file = frame.f_code.co_name, frame.f_code.co_filename
    if name == "replace" and type(frame.f_locals.get("self")) is type(made):
        return False
    # A module of Equinox's hands out its fields by a function of its own.
    is_access = name in ("__getattribute__", "__getattr__")
    return file != "<string>" and is_users(file) and not is_access


def _as_jax(value: Any) -> Any:
    """A value; for one of NumPy's, the type that it has in JAX: float64 may be float32."""
    if not isinstance(value, (np.generic, np.ndarray)):
        return value
    return jax.ShapeDtypeStruct(value.shape, dtype_of(value) or value.dtype)


def _is_array(value: Any) -> bool:
    # Newer JAX traces constants as well, and finds out later that they are none.
    return isinstance(value, (np.generic, np.ndarray, jax.Array))


def _arrays(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _arrays(value)
        elif _is_array(value):
            yield value


def bound(frame: FrameType | None, value: Any) -> Origin | None:
    """The assignment of the variable by which a function has an array or a container."""
    return None if type(value) in _SCALARS else _binding(frame, value)


def _binding(frame: FrameType | None, value: Any) -> Origin | None:
    """The assignment of the variable by which a function, or who called it, has a value."""
    while frame is not None and is_users(frame.f_code.co_filename):
        file, line = frame.f_code.co_filename, frame.f_lineno
        variables = frame.f_locals, frame.f_globals
        for names in () if _is_argument_of_lambda(frame, value) else variables:
            for name in [name for name, bound in names.items() if bound is value]:
                found = _assignment(file, name, line)
                if found is not None:
                    code = linecache.getline(file, found[0]).strip()
                    return Origin(file, *found, code)
        frame = frame.f_back
    return None


def _is_argument_of_lambda(frame: FrameType, value: Any) -> bool:
    code = frame.f_code
    arguments = code.co_varnames[: code.co_argcount]
    bound = (frame.f_locals.get(name) for name in arguments)
    return code.co_name == "<lambda>" and any(x is value for x in bound)


def _assignment(file: str, name: str, line: int) -> tuple[int, str] | None:
    """The line, and the function, that last assigned a name as seen from a line."""
    inside = [scope for scope in _scopes(file) if scope.first <= line <= scope.last]
    for scope in reversed(inside):
        lines = [n for n in scope.assigned.get(name, ()) if n <= line or scope is inside[0]]
        if lines:
            return max(lines), scope.name
        if name in scope.parameters:
            # Of the function at hand the caller tells more; one around it has returned.
            at_hand = scope is inside[-1]
            return None if at_hand else (scope.parameters[name], scope.name)
    return None


class _Scope(NamedTuple):
    name: str
    first: int
    last: int
    assigned: dict[str, list[int]]
    parameters: dict[str, int]


@functools.cache
def _scopes(file: str) -> list[_Scope]:
    """The functions of a file from the outside in, the lines that assign their names."""
    lines = linecache.getlines(file)
    try:
        module = ast.parse("".join(lines))
    except SyntaxError:  # a notebook's magic, say
        return []
    scopes = [_Scope("<module>", 1, len(lines) + 1, {}, {})]

    def visit(node: ast.AST, scope: _Scope, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            line = getattr(child, "lineno", 0)
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                name, last = prefix + child.name, child.end_lineno or line
                inner = _Scope(name, line, last, {}, {})
                scopes.append(inner)
                visit(child, inner, f"{name}.<locals>.")
                continue
            if isinstance(child, ast.ClassDef):  # its names are not seen from its methods
                hidden = _Scope("", 0, 0, {}, {})
                visit(child, hidden, f"{prefix}{child.name}.")
                continue
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                scope.assigned.setdefault(child.id, []).append(line)
            elif isinstance(child, ast.arg):
                scope.parameters[child.arg] = line
            visit(child, scope, prefix)

    visit(module, scopes[0], "")
    return scopes
