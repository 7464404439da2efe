"""What a call is compiled for: the types of its leaves, and its constants."""

import dataclasses
from collections.abc import Hashable, Iterator
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
from jax import tree_util

from .._blame.why import record_of
from .._carry.modules import is_in_place
from .._leaves.key_path import KeyPath, TreeName, key_value, tree_name
from .._leaves.leaf_type import LeafType, traced_type
from .._leaves.types import Leaf, PyTree
from .._recording.monitored import RECORD
from .._recording.value_record import ValueRecord
from .._recording.values import is_concrete
from .._source.inert import fields_of, is_a, items_of, static
from .call import CompilingCall

# Of arguments that are searched for constants.
_DEEPEST_CONSTANT = 8
_MOST_CONSTANTS = 20_000

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, type)


@dataclasses.dataclass(frozen=True)
class ArgumentPart:
    """A leaf of the arguments, or what is a constant of the program.

    Attributes:
        text: as the report has it.
        identity: what parts of two calls are compared by. JAX keeps the objects of what it
            has compiled, so that no other object has the identity of one.
        record: how it came to be, or the object that holds it, if that was recorded.
        leaf_type: of a leaf.
        constant_type: of a constant that is compared by its value.
        value: of such a constant.
    """

    text: str
    identity: Hashable
    record: ValueRecord | None = None
    leaf_type: LeafType | None = None
    constant_type: type | None = None
    value: object = None

    @property
    def is_object(self) -> bool:
        """Whether it equals only itself."""
        return self.leaf_type is None and self.constant_type is None

    @property
    def role(self) -> Hashable:
        """What stands at its path: a leaf of any type, a constant of one type."""
        if self.leaf_type is not None:
            return None
        return self.constant_type or self.text


def parts_of_call(
    call: CompilingCall, leaves: dict[KeyPath, Leaf]
) -> dict[KeyPath, ArgumentPart]:
    """Returns the leaves and the constants of a call by path."""
    parts = {}
    names_without_keys = set()
    for path, leaf in leaves.items():
        parts[path] = _leaf_part(path, leaf)
        # A node without keys has other paths for JAX than for `_inside`.
        if tree_util.FlattenedIndexKey in map(type, path):
            names_without_keys.add(tree_name(path))
    for name, argument in call.arguments.items():
        if name in names_without_keys:
            continue
        constants = _constants((TreeName(name),), argument, ())
        for path, part in islice(constants, _MOST_CONSTANTS):
            parts.setdefault(path, part)
    return parts


def type_in_program(leaf: Leaf) -> LeafType:
    """Returns the type that an array or a number has in a program."""
    return traced_type(leaf) or LeafType(leaf.dtype)


def _leaf_part(path: KeyPath, leaf: Leaf) -> ArgumentPart:
    leaf_type = type_in_program(leaf)
    text = leaf_type.without_weak
    if leaf_type.weak:
        text += " (weak)"
    return ArgumentPart(text, leaf_type, _record_of_part(path, leaf), leaf_type)


def _record_of_part(path: KeyPath, value: Any) -> ValueRecord | None:
    name = str(key_value(path[-1]))
    return RECORD.recorder.record_of_number(name, value) or record_of(value)


def _constants(
    path: KeyPath, value: Any, holders: tuple[Any, ...]
) -> Iterator[tuple[KeyPath, ArgumentPart]]:
    """Yields the constants in an argument by path; `holders` are the objects around it."""
    if is_concrete(value) or len(holders) >= _DEEPEST_CONSTANT:
        return
    if type(value) in _PLAIN or is_a(value, np.dtype):
        yield path, _constant_part(path, value)
        return
    inner_parts = _inside(value)
    if inner_parts is None:
        yield path, _object_part(value, holders)
        return
    for key, part in inner_parts:
        yield from _constants((*path, key), part, (value, *holders))


def _constant_part(path: KeyPath, value: Any) -> ArgumentPart:
    kind = type(value)
    text = f"{value:.6g}" if kind is float else str(value)
    record = _record_of_part(path, value)
    return ArgumentPart(text[:20], (kind, str(value)), record, None, kind, value)


def _object_part(value: Any, holders: tuple[Any, ...]) -> ArgumentPart:
    """Returns an object that equals only itself, with the record of it or its holder."""
    name = type(value).__name__
    identity: Hashable = id(value)
    if type(value) is MethodType:  # another object at each look
        holder = value.__self__
        function = value.__func__
        identity = (id(holder), id(function))
    # A function of an optimizer has no line of its own, but the optimizer has.
    record = None
    for holder in (value, *holders):
        record = record or RECORD.recorder.record_of(holder)
    return ArgumentPart(name, identity, record)


def _inside(value: PyTree) -> list[tuple[Any, Any]] | None:
    """Returns the parts by which a value is compared; None if it equals only itself."""
    if is_a(value, (dict, list, tuple)):
        return [(_key_of(value, name), part) for name, part in items_of(value)]
    if type(value) in _FUNCTIONS or not _is_compared_by_parts(value):
        return None
    parts = []
    for name, part in fields_of(value).items():
        if not name.startswith("_"):
            parts.append((tree_util.GetAttrKey(name), part))
    return parts


def _key_of(holder: Any, name: Any) -> Any:
    if is_a(holder, dict):
        # The text of any other object would be a user's function.
        return tree_util.DictKey(name if type(name) in _PLAIN else ...)
    is_field = type(name) is str
    return tree_util.GetAttrKey(name) if is_field else tree_util.SequenceKey(name)


def _is_compared_by_parts(value: Any) -> bool:
    """Returns whether JAX takes an object apart, or its class defines equality."""
    if is_in_place(value) or static(type(value), "__eq__") is not object.__eq__:
        return True
    return not tree_util.all_leaves((value,))
