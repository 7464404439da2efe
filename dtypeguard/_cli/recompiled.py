"""Finds the functions that a `jit` traced again only because an argument changed its type.

While the context is open, `jax.jit`, `equinox.filter_jit` and `flax.nnx.jit` wrap each
function in one that records the types of its arguments. It runs where JAX runs it, while
JAX traces, so a compiled function costs nothing. `jax_explain_cache_misses` reports the
same in words that differ between releases and crash in the oldest, also reports the bodies
of loops, and compares with the wrong call where static arguments differ.
"""

import functools
import importlib.abc
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import equinox
import jax
import numpy as np
from jax import tree_util
from jax.core import Tracer

from .._leaves.files import is_installed, is_users, short_path
from .._leaves.modules import spread
from .._leaves.rows import columns, type_name
from .._leaves.types import Leaf
from .._program.origins import origin_of_frame

_MOST = 20  # leaves of one function that are listed
_NNX = "flax.nnx"

Function = Callable[..., Any]  # its arguments and its result are the script's


class Traced(NamedTuple):
    """The arguments that a function was traced with.

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
    """A context that records what the functions under a `jit` are traced with."""

    def __init__(self):
        self._found: dict[str, dict[str, Change]] = {}
        self._here = threading.local()
        self._patched: list[tuple[ModuleType, str, Function]] = []

    def __enter__(self):
        self._patch(jax, "jit")
        self._patch(equinox, "filter_jit")
        patch_nnx = lambda nnx: self._patch(nnx, "jit")
        self._nnx_import = _AfterNnxImport(patch_nnx)
        if _NNX in sys.modules:
            patch_nnx(sys.modules[_NNX])
        else:
            sys.meta_path.insert(0, self._nnx_import)
        return self

    def __exit__(self, *exception):
        self._nnx_import.remove()
        for module, name, before in self._patched:
            setattr(module, name, before)

    def lines(self) -> list[str]:
        """The report; empty if no function was traced again for its types."""
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

    def _patch(self, module: ModuleType, name: str) -> None:
        jit = getattr(module, name)

        @functools.wraps(jit)
        def recording_jit(*args: Any, **kwargs: Any) -> Any:
            if args and callable(args[0]):
                return jit(self._recorded(args[0]), *args[1:], **kwargs)
            made = jit(*args, **kwargs)  # a decorator, given the options alone
            return lambda function: made(self._recorded(function))

        self._patched.append((module, name, jit))
        setattr(module, name, recording_jit)

    def _recorded(self, function: Function) -> Function:
        owner = function if inspect.isfunction(function) else type(function)
        if owner.__module__.partition(".")[0] in ("equinox", "flax"):
            return function  # the user's own function is inside it
        # JAX caches traces by function, so each function is wrapped once.
        kept = getattr(function, "__dict__", {})
        if isinstance(known := kept.get(_KEPT), tuple) and known[0] is function:
            return known[1]
        earlier: list[Traced] = []

        @functools.wraps(function, updated=())
        def recorded(*args: Any, **kwargs: Any) -> Any:
            depth = getattr(self._here, "depth", 0)
            if not depth:  # else it becomes a part of the function that is being traced
                self._record(function, earlier, args, kwargs)
            self._here.depth = depth + 1
            try:
                return function(*args, **kwargs)
            finally:
                self._here.depth = depth

        if inspect.isfunction(function):
            function.__dict__[_KEPT] = function, recorded
        return recorded

    def _record(
        self, function: Function, earlier: list[Traced], args: tuple, kwargs: dict
    ) -> None:
        try:
            now = _traced(function, args, kwargs, _caller(sys._getframe(2)))
        except Exception:  # the report lacks it; the script runs on
            return
        alike = [each for each in earlier if each.rest == now.rest]
        earlier.append(now)
        changes = [_changes(each, now) for each in reversed(alike)]
        if changes and all(changes):
            self._found.setdefault(_name(function), {}).update(min(changes, key=len))


_KEPT = "__dtypeguard_recorded__"


class _AfterNnxImport(importlib.abc.MetaPathFinder):
    """Patches Flax NNX as soon as it is imported."""

    def __init__(self, patch: Callable[[ModuleType], None]):
        self._patch = patch

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds the module as others do, and has its loader patch it."""
        if fullname != _NNX:
            return None
        self.remove()
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._patch(module)

            spec.loader.exec_module = exec_module
        return spec

    def remove(self) -> None:
        """Stops waiting for the import."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _traced(function: Function, args: tuple, kwargs: dict, caller: str) -> Traced:
    try:
        named = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        named = {"args": args, "kwargs": kwargs}
    leaves, treedef = tree_util.tree_flatten_with_path(spread(named))
    types, rest = {}, []
    for (name, *path), leaf in leaves:
        if isinstance(leaf, Tracer):
            where = f"{name.key}{tree_util.keystr(tuple(path))}"
            types[where] = type_name(leaf) or str(getattr(leaf, "dtype", ""))
            rest.append(np.shape(leaf))
        else:
            rest.append((type(leaf), _value(leaf)))
    return Traced((treedef, *rest), types, caller)


def _value(leaf: Leaf) -> int:
    try:
        return hash(leaf)
    except TypeError:
        return id(leaf)


def _caller(frame: FrameType | None) -> str:
    """The line of the script that called what is being traced."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file) and not is_installed(file):
            return str(origin_of_frame(frame))
        frame = frame.f_back
    return ""


def _changes(before: Traced, now: Traced) -> dict[str, Change]:
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


def _name(function: Function) -> str:
    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    if not hasattr(inner, "__code__"):  # an object with `__call__`
        inner = vars(type(inner)).get("__call__", inner)
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__qualname__", type(function).__name__)
    name = name.rpartition("<locals>.")[2]
    return (
        f"{name} ({short_path(code.co_filename)}:{code.co_firstlineno})" if code else name
    )
