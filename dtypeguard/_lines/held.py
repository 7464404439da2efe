"""The arrays in a value, found without JAX and without running anything of the user's."""

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from .._leaves.types import Leaf, PyTree

Path = tuple[str, ...]

_DEPTH, _MOST = 8, 2000  # of containers in one another, and of what they hold
_NONE = (str, bytes, bool, type(None), type, property, types.CodeType, types.ModuleType)
_NONE += (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_LIBRARIES = {"jax", "jaxlib", "numpy"}
_OPAQUE = {*_LIBRARIES, "builtins", "typing", "logging", "threading"}


@functools.cache
def _is_array_type(kind: type) -> bool:
    package = kind.__module__.partition(".")[0]
    is_array = package == "numpy" or (package in _LIBRARIES and hasattr(kind, "aval"))
    return is_array and hasattr(kind, "dtype") and hasattr(kind, "shape")


def is_array(value: object) -> bool:
    """Whether a value is an array or a tracer, and no abstract value: JAX shares those."""
    return _is_array_type(type(value))


def is_of_numpy(value: object) -> bool:
    """Whether a value is an array or a scalar of NumPy."""
    return type(value).__module__ == "numpy" and is_array(value)


def is_number(value: object) -> bool:
    """Whether a value is a number of Python's, and no bool."""
    return type(value) in (int, float, complex)


def held(value: PyTree) -> Iterator[tuple[Path, Leaf]]:
    """The arrays and the Python numbers in a value, each with its path."""
    queue: list[tuple[Path, Any]] = [((), value)]
    seen: set[int] = set()
    for path, each in queue:
        if is_array(each) or is_number(each):
            yield path, each
        elif not isinstance(each, _NONE) and len(path) < _DEPTH and id(each) not in seen:
            seen.add(id(each))
            parts = _parts(each)
            room = _MOST - len(queue)
            queue += [((*path, str(key)), part) for key, part in parts[: max(room, 0)]]


def _parts(value: Any) -> list[tuple[object, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(zip(getattr(value, "_fields", range(len(value))), value))
    if isinstance(value, functools.partial):
        return [("args", value.args), ("keywords", value.keywords)]
    if type(value).__module__.partition(".")[0] in _OPAQUE:
        return []
    found = list(getattr(value, "__dict__", {}).items())
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            try:
                found.append((name, object.__getattribute__(value, name)))
            except AttributeError:  # not assigned yet
                continue
    return found


def leaves_of(tree: PyTree) -> list[tuple[Path, Leaf]]:
    """The arrays and numbers of a tree, in the order of JAX."""
    util: Any = sys.modules["jax"].tree_util
    found: list[tuple[Path, Leaf]] = []
    for path, leaf in util.tree_flatten_with_path(tree)[0]:
        names = (getattr(k, "key", getattr(k, "idx", getattr(k, "name", k))) for k in path)
        start = tuple(map(str, names))
        found += [(start + more, part) for more, part in held(leaf)]
    return found


def passed_as(leaves: list[Leaf], tracers: list[Leaf]) -> list[Leaf]:
    """What tracers stand for among some leaves, if the last of these are that; else none.

    Static arguments and numbers may come before them.
    """
    are_arrays = [leaf for leaf in leaves if is_array(leaf)]
    for given in (are_arrays, leaves):
        last = given[len(given) - len(tracers) :] if len(given) >= len(tracers) else []
        if last and all(map(_may_stand_for, tracers, last)):
            return last
    return []


def _may_stand_for(tracer: Leaf, leaf: Leaf) -> bool:
    """Whether a tracer is for a leaf, for one example of it, or for a part of it."""
    if is_number(leaf):
        return tracer.shape == ()
    if leaf is tracer or getattr(leaf, "dtype", None) is None:
        return False
    is_same = leaf.dtype == tracer.dtype or str(leaf.dtype).replace("64", "32") == str(
        tracer.dtype
    )
    return is_same and tracer.shape in (leaf.shape, leaf.shape[1:])


def type_of(value: Leaf) -> tuple[Any, bool]:
    """The dtype of an array and whether it is weak; of a number its type."""
    return getattr(value, "dtype", type(value)), bool(getattr(value, "weak_type", False))
