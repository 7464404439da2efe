"""The arrays and the Python numbers in a value.

They are found without JAX, and nothing of the user's runs.
"""

import functools
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from operator import itemgetter
from types import FrameType
from typing import Any, NamedTuple

from .._leaves.types import Leaf, PyTree
from .._source.inert import fields_of, is_a, items_of, package_of, variables_of
from .._source.origin import callers, release

LeafPlace = tuple[str, ...]  # the keys, indices and attributes that lead to a leaf

# Of containers inside of one another, and of what they hold.
_DEEPEST_CONTAINER = 8
_MOST_PARTS = 2000
_WITHOUT_ARRAYS = (
    str,
    bytes,
    bool,
    type(None),
    type,
    property,
    types.CodeType,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
)
_NUMERIC_LIBRARIES = {"jax", "jaxlib", "numpy"}
_OPAQUE_PACKAGES = {*_NUMERIC_LIBRARIES, "builtins", "typing", "logging", "threading"}


class ValueType(NamedTuple):
    """The dtype of an array, or the type of a number, and whether it promotes weakly."""

    dtype: Any
    is_weak: bool


def value_type(value: Leaf) -> ValueType:
    """Returns the type of an array or of a Python number."""
    is_weak = bool(getattr(value, "weak_type", False))
    return ValueType(getattr(value, "dtype", type(value)), is_weak)


@functools.cache
def _is_array_type(kind: type) -> bool:
    is_of_library = kind.__module__.startswith("numpy") or hasattr(kind, "aval")
    return is_of_library and hasattr(kind, "dtype") and hasattr(kind, "shape")


def is_concrete(value: object) -> bool:
    """Returns whether a value is an array or a tracer; JAX shares its abstract values."""
    kind = type(value)
    return package_of(kind) in _NUMERIC_LIBRARIES and _is_array_type(kind)


def is_tracer(value: object) -> bool:
    """Returns whether an array is a tracer."""
    return is_concrete(value) and hasattr(type(value), "_trace")


def is_number(value: object) -> bool:
    """Returns whether a value is a number of Python, and no bool."""
    return type(value) in (int, float, complex)


def named_leaves(value: PyTree) -> Iterator[tuple[LeafPlace, Leaf]]:
    """Yields the arrays and the Python numbers in a value, in the order of JAX.

    A leaf in two places comes twice, as for JAX.
    """
    stack: list[tuple[LeafPlace, Any, frozenset[int]]] = [((), value, frozenset())]
    for _ in range(_MOST_PARTS):
        if not stack:
            return
        names, part, holders = stack.pop()
        if is_concrete(part) or is_number(part):
            yield names, part
        elif len(names) < _DEEPEST_CONTAINER and id(part) not in holders:
            inner_holders = holders | {id(part)}
            for name, inner in reversed(_named_parts(part)[:_MOST_PARTS]):
                stack.append(((*names, name), inner, inner_holders))


def arrays_in(value: PyTree) -> list[Leaf]:
    """Returns the arrays in a value, in the order of JAX."""
    return [leaf for _, leaf in named_leaves(value) if is_concrete(leaf)]


def _named_parts(value: Any) -> list[tuple[str, Any]]:
    if is_a(value, (dict, list, tuple)):
        items = list(items_of(value))
        # JAX sorts the keys of these; other dicts have an order of their own.
        if type(value) in (dict, defaultdict):
            key_types = {type(key) for key, _ in items}
            if key_types in ({str}, {int}):
                items.sort(key=itemgetter(0))
        return [(_key_text(key), part) for key, part in items]
    if is_a(value, _WITHOUT_ARRAYS) or package_of(type(value)) in _OPAQUE_PACKAGES:
        return []
    return list(fields_of(value).items())


def _key_text(key: object) -> str:
    is_plain = type(key) in (str, int, bool, float)
    return str(key) if is_plain else type(key).__name__


def _leaves_for_tracers(leaves: list[Leaf], tracers: list[Leaf]) -> list[Leaf]:
    """Returns the leaves that tracers stand for, if those are the last; else none."""
    # Static arguments and numbers may stand before them.
    arrays = [leaf for leaf in leaves if is_concrete(leaf)]
    for candidates in (arrays, leaves):
        last = candidates[-len(tracers) :]
        if len(last) == len(tracers) and all(map(_may_stand_for, tracers, last)):
            return last
    return []


def leaves_given_to_jax(
    frame: FrameType, tracers: list[Leaf], is_caller: Callable[[str], bool]
) -> list[Leaf]:
    """Returns what JAX was given, by its frames, for tracers that a function has.

    Args:
        frame: of the function.
        tracers: all that JAX made for the call.
        is_caller: whether a file may have the function that called JAX.
    """
    outermost: list[Leaf] = []
    # The outermost that fits: further in JAX has its own order and constants.
    for caller in callers(frame):
        if is_caller(caller.f_code.co_filename):
            break
        for value in list(variables_of(caller).values()):
            if package_of(type(value)) == "jax":
                value = getattr(value, "vals", None)  # of a tree that is flat
            if is_a(value, (tuple, list)):
                leaves = [leaf for _, leaf in named_leaves(value)]
                outermost = _leaves_for_tracers(leaves, tracers) or outermost
        release([caller])
    return outermost


def _may_stand_for(tracer: Leaf, leaf: Leaf) -> bool:
    """Returns whether a tracer may be for a leaf, or for an example or a part of it."""
    if is_number(leaf):
        return tracer.shape == ()
    if leaf is tracer or not hasattr(leaf, "dtype"):
        return False
    # With x64 off JAX halves what NumPy has in 64 bits.
    dtype = str(leaf.dtype)
    if str(tracer.dtype) not in (dtype, dtype.replace("64", "32")):
        return False
    return tracer.shape in (leaf.shape, leaf.shape[1:])
