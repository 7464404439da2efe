"""The arrays and the Python numbers in a value.

They are found without JAX, and nothing of the user's runs.
"""

from collections.abc import Callable, Iterator
from operator import itemgetter
from types import FrameType
from typing import Any, NamedTuple

from .._leaves.types import Leaf, PyTree
from .._source.inert import fields_of, is_a, items_of, package_of, variables_of
from .._source.origin import callers, release

NamedLeaf = tuple[str, Leaf]  # under the key or the attribute that leads to it

# Of containers inside of one another, and of what they hold.
_DEEPEST_CONTAINER = 8
_MOST_PARTS = 2000
_NUMERIC_LIBRARIES = {"jax", "jaxlib", "numpy"}
_OPAQUE_PACKAGES = {*_NUMERIC_LIBRARIES, "builtins", "typing", "logging", "threading"}


class ValueType(NamedTuple):
    """The dtype of an array, or the type of a number, and whether it promotes weakly."""

    dtype: Any
    is_weak: bool


def value_type(value: Leaf) -> ValueType:
    """Returns the type of an array or of a Python number."""
    if is_number(value):
        return ValueType(type(value), is_weak=True)
    return ValueType(value.dtype, getattr(value, "weak_type", False))


def names_in_jax(dtype: object) -> set[str]:
    """Returns the names that arrays of JAX may have for the dtype of an array."""
    # A recording begins while JAX is being imported.
    from .._leaves.compat import x64_enabled

    name = str(dtype)
    names = {name}
    if not x64_enabled():  # JAX halves what NumPy has in 64 bits
        half = name.replace("64", "32")
        names.add(half)
    return names


def is_concrete(value: object) -> bool:
    """Returns whether a value is an array or a tracer, and no abstract value of JAX."""
    kind = type(value)
    if package_of(kind) not in _NUMERIC_LIBRARIES:
        return False
    return hasattr(kind, "__array_priority__")


def is_tracer(value: object) -> bool:
    """Returns whether an array is a tracer."""
    if not is_concrete(value):
        return False
    return hasattr(type(value), "_trace")


def is_number(value: object) -> bool:
    """Returns whether a value is a number of Python, and no bool."""
    return type(value) in (int, float, complex)


def is_leaf(value: object) -> bool:
    """Returns whether a value is an array or a number of Python."""
    return is_concrete(value) or is_number(value)


def named_leaves(value: PyTree, name: str = "") -> Iterator[NamedLeaf]:
    """Yields the arrays and the Python numbers in a value, in the order of JAX.

    A leaf in two places comes twice, as for JAX. Each comes with the key or the attribute
    that leads to it, past indices; or else with the name of the value.
    """
    stack = [(name, value, 0)]
    for _ in range(_MOST_PARTS):
        if not stack:
            return
        name, part, depth = stack.pop()
        if is_leaf(part):
            yield name, part
        elif depth < _DEEPEST_CONTAINER:
            items = _items(part)[:_MOST_PARTS]
            for key, inner in reversed(items):
                inner_name = name
                if type(key) is str:
                    inner_name = key
                stack.append((inner_name, inner, depth + 1))


def _items(value: Any) -> list[tuple[object, Any]]:
    if is_a(value, (dict, list, tuple)):
        items = list(items_of(value))
        # JAX sorts the keys of a dict; those of an OrderedDict have an order of their own.
        if type(value) is dict and {type(key) for key in value} == {str}:
            items.sort(key=itemgetter(0))
        return items
    package = package_of(type(value))
    if package in _OPAQUE_PACKAGES:
        return []
    fields = fields_of(value)
    return list(fields.items())


def leaves_given_to_jax(
    frame: FrameType, tracers: list[Leaf], is_caller: Callable[[str], bool]
) -> list[Leaf]:
    """Returns the leaves, by JAX's frames, for which a function has tracers.

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
        variables = dict(variables_of(caller))
        for value in variables.values():
            if not is_a(value, (tuple, list)):
                continue
            leaves = []
            for _, leaf in named_leaves(value):
                leaves.append(leaf)
            # Static arguments may stand before them.
            last = leaves[-len(tracers) :]
            if len(last) != len(tracers):
                continue
            if all(map(_may_stand_for, tracers, last)):
                outermost = last
        release([caller])
    return outermost


def _may_stand_for(tracer: Leaf, leaf: Leaf) -> bool:
    """Returns whether a tracer may be for a leaf, or for an example or a part of it."""
    # A number has neither.
    dtype = getattr(leaf, "dtype", tracer.dtype)
    shape = getattr(leaf, "shape", ())
    if str(tracer.dtype) not in names_in_jax(dtype):
        return False
    part = shape[1:]  # of which a function that is mapped has a tracer
    return tracer.shape in (shape, part)
