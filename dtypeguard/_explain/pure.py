"""Tells which calls of the source may run again in a trial: those that change nothing."""

import ast
import builtins
import functools
from collections.abc import Mapping
from types import FrameType, ModuleType
from typing import Any

import jax

from .._leaves.dtypes import is_array
from .._source.files import is_installed, is_users
from .._source.syntax import evaluated, root


def is_pure(call: ast.Call, frame: FrameType, names: Mapping[str, object]) -> bool:
    """Whether a call is one of a package's functions, or a method of what cannot change.

    Args:
        call: in the source.
        frame: whose variables it reads.
        names: of functions that the source does not have.
    """
    called = call.func
    if ast.unparse(called) in (*names, *_OURS) or isinstance(
        getattr(called, "value", called), ast.Call
    ):
        return True  # what a call returns is judged by that call
    function: Any = evaluated(called, frame)
    if isinstance(called, ast.Attribute):
        owner = evaluated(called.value, frame)
        if owner is None and hasattr(jax.Array, called.attr):
            return True  # what it computes is most likely an array
        if not isinstance(owner, ModuleType):
            holder = evaluated(root(called.value), frame)
            return any(map(_is_fixed, (owner, holder, function)))
        function = getattr(owner, called.attr, None)
    elif function is None and isinstance(called, ast.Name):
        function = getattr(builtins, called.id, None)
    while isinstance(function, functools.partial):
        function = function.func
    if hasattr(function, "lower") or _is_fixed(function):
        return True  # what is jitted has no effects
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    if file is None:
        return (getattr(function, "__module__", None) or "").split(".")[0] in _PURE
    return is_installed(file) or not is_users(file)


def _is_fixed(owner: object) -> bool:
    """Whether an object does not change: an array, a NamedTuple, a module of Equinox."""
    options = getattr(type(owner), "__dataclass_params__", None)
    names = {
        f"{each.__module__.split('.')[0]}.{each.__name__}" for each in type(owner).__mro__
    }
    is_frozen = isinstance(owner, tuple) or getattr(options, "frozen", False)
    return is_frozen or is_array(owner) or not names.isdisjoint(_FROZEN)


_OURS = ("dtypeguard.guard", "dtypeguard.guard_step")
_FROZEN = ("equinox.Module", "flax.Module")
_PURE = ("jax", "jaxlib", "numpy", "builtins")
