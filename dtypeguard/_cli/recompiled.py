"""Which functions `jax.jit` traced again only because the type of an argument changed.

While the context is open `jax.jit` is given each function inside of one that looks at the
types of its arguments and calls it. It runs where JAX runs it, when it traces, so what is
compiled already costs nothing. JAX tells of this by itself (`jax_explain_cache_misses`),
but in words that differ between releases, crash in the oldest, tell of the bodies of loops
as well, and compare with the wrong call where static arguments differ.
"""

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import tree_util
from jax.core import Tracer

from .._leaves.rows import columns, type_name
from .._program.origins import short

_MOST = 20  # leaves of one function that are told


class Seen(NamedTuple):
    """What a function was traced with.

    Attributes:
        rest: all but the types: structure, shapes, and the values of static arguments.
        types: of the traced leaves, by path.
    """

    rest: tuple[Any, ...]
    types: dict[str, str]


class Recompiled:
    """A context that remembers what the functions given to `jax.jit` are traced with."""

    def __init__(self):
        self._found: dict[str, dict[str, str]] = {}
        self._here = threading.local()

    def __enter__(self):
        self._jit = jax.jit
        jax.jit = self._recording_jit()
        return self

    def __exit__(self, *exception):
        jax.jit = self._jit

    def lines(self) -> list[str]:
        """What is to be told; nothing if nothing was traced again for its types."""
        if not self._found:
            return []
        n = len(self._found)
        lines = [
            f"dtypeguard run: {n} function{'s were' if n > 1 else ' was'} compiled again "
            "only because the type of an argument changed."
        ]
        for function, leaves in self._found.items():
            told = columns([*leaves.items()][:_MOST])
            more = len(leaves) - len(told)
            lines += [f"  {function}", *(f"    {line}" for line in told)]
            lines += [f"    and {more} more"] if more else []
        changes = [change for leaves in self._found.values() for change in leaves.values()]
        if any("(weak)" in change for change in changes):
            lines.append(
                "Weak types come from Python numbers: give jax.Arrays from the first call "
                "on, such as dtypeguard.strong(state)."
            )
        if any(change.count("(weak)") != 1 for change in changes):
            lines.append(
                "Where a step gives back another dtype than it was given: "
                "dtypeguard.guard_step(step), or dtypeguard.guard(opt) for an optimizer."
            )
        return lines

    def _recording_jit(self) -> Callable[..., Any]:
        jit = self._jit

        @functools.wraps(jit)
        def recording_jit(*args: Any, **kwargs: Any) -> Any:
            if args and callable(args[0]):
                return jit(self._recorded(args[0]), *args[1:], **kwargs)
            made = jit(*args, **kwargs)  # newer JAX: a decorator, given the options alone
            return lambda function: made(self._recorded(function))

        return recording_jit

    def _recorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # JAX keeps what it traced by function: the same one is to be wrapped once.
        kept = getattr(function, "__dict__", {})
        if isinstance(known := kept.get(_KEPT), tuple) and known[0] is function:
            return known[1]
        earlier: list[Seen] = []

        @functools.wraps(function, updated=())
        def recorded(*args: Any, **kwargs: Any) -> Any:
            depth = getattr(self._here, "depth", 0)
            if not depth:  # else it becomes a part of what is traced around it
                self._look(function, earlier, args, kwargs)
            self._here.depth = depth + 1
            try:
                return function(*args, **kwargs)
            finally:
                self._here.depth = depth

        if inspect.isfunction(function):
            function.__dict__[_KEPT] = function, recorded
        return recorded

    def _look(
        self, function: Any, earlier: list[Seen], args: tuple[Any, ...], kwargs: Any
    ) -> None:
        try:
            now = _seen(function, args, kwargs)
        except Exception:  # less is told; the script runs as without
            return
        alike = [each for each in earlier if each.rest == now.rest]
        earlier.append(now)
        changes = [
            {path: f"{each.types[path]} -> {now.types[path]}" for path in each.types}
            for each in reversed(alike)
        ]
        changes = [
            {
                path: text
                for path, text in change.items()
                if len(set(text.split(" -> "))) > 1
            }
            for change in changes
        ]
        if changes and all(changes):
            self._found.setdefault(_name(function), {}).update(min(changes, key=len))


_KEPT = "__dtypeguard_recorded__"


def _seen(function: Any, args: tuple[Any, ...], kwargs: Any) -> Seen:
    try:
        given = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        given = {"args": args, "kwargs": kwargs}
    leaves, treedef = tree_util.tree_flatten_with_path(given)
    types, rest = {}, []
    for (name, *path), leaf in leaves:
        if isinstance(leaf, Tracer):
            where = f"{name.key}{tree_util.keystr(tuple(path))}"
            types[where] = type_name(leaf) or str(getattr(leaf, "dtype", ""))
            rest.append(np.shape(leaf))
        else:
            rest.append((type(leaf), _value(leaf)))
    return Seen((treedef, *rest), types)


def _value(leaf: Any) -> Any:
    try:
        return hash(leaf)
    except TypeError:
        return id(leaf)


def _name(function: Any) -> str:
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name} ({short(code.co_filename)}:{code.co_firstlineno})" if code else name
