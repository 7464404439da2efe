"""What a call is compiled for: the types of its leaves, and its constants."""

import dataclasses
import itertools
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
from jax import tree_util

from .._blame.why import record_of
from .._carry.modules import is_in_place
from .._leaves.key_path import KeyPath, TreeName, last_name
from .._leaves.leaf_type import LeafType, traced_type
from .._leaves.types import Leaf
from .._recording.monitored import RECORD
from .._recording.value_record import ValueRecord
from .._recording.values import is_concrete
from .._source.inert import fields_of, is_a, items_of, static
from .call import CompilingCall

_MOST_CONSTANTS = 20_000
_DEEPEST_CONSTANT = 8  # of arguments that are searched for constants
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclasses.dataclass(frozen=True)
class ArgumentPart:
    """A leaf of the arguments, or what is a constant of the program.

    Attributes:
        text: as the report has it.
        identity: what parts of two calls are compared by. JAX keeps the objects of what it
            has compiled, so that no other object has the identity of one.
        record: how it came to be, if that was recorded.
        leaf_type: of a leaf.
        value: of a constant that is compared by its value.
        is_object: whether it equals only itself.
    """

    text: str
    identity: Hashable
    record: ValueRecord | None = None
    leaf_type: LeafType | None = None
    value: object = None
    is_object: bool = False


def parts_of_call(
    call: CompilingCall, leaves: dict[KeyPath, Leaf]
) -> dict[KeyPath, ArgumentPart]:
    """Returns the leaves and the constants of a call by path."""
    parts = {}
    for path, leaf in leaves.items():
        leaf_type = traced_type(leaf)
        record = _record_of_part(path, leaf)
        parts[path] = ArgumentPart(str(leaf_type), leaf_type, record, leaf_type)
    for name, argument in call.arguments.items():
        constants = _constants((TreeName(name),), argument)
        # An object may lead to others without end.
        for path, part in itertools.islice(constants, _MOST_CONSTANTS):
            parts.setdefault(path, part)
    return parts


def _record_of_part(path: KeyPath, value: Any) -> ValueRecord | None:
    name = last_name(path)
    return RECORD.recorder.record_of_number(name, value) or record_of(value)


def _constants(
    path: KeyPath, value: Any, record: ValueRecord | None = None
) -> Iterator[tuple[KeyPath, ArgumentPart]]:
    """Yields the constants in an argument by path; `record` is of what holds it."""
    # A function of an optimizer has no line of its own, but the optimizer has.
    record = record_of(value) or record
    if is_concrete(value) or len(path) > _DEEPEST_CONSTANT:
        return
    if type(value) in _PLAIN or is_a(value, np.dtype):
        text = str(value)
        identity = (type(value), text)
        record = _record_of_part(path, value)
        yield path, ArgumentPart(text[:20], identity, record, value=value)
    elif _is_compared_by_parts(value):
        for key, part in _keyed_parts(value):
            yield from _constants((*path, key), part, record)
    else:
        name = type(value).__name__
        yield path, ArgumentPart(name, id(value), record, is_object=True)


def _keyed_parts(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Yields what a container or an object holds, by keys of JAX."""
    for name, part in items_of(holder):
        if is_a(holder, dict):
            # The text of any other object would be a user's function.
            key = tree_util.DictKey(name if type(name) in _PLAIN else ...)
        elif type(name) is int:
            key = tree_util.SequenceKey(name)
        else:
            key = tree_util.GetAttrKey(name)
        yield key, part
    for name, part in fields_of(holder).items():
        if not name.startswith("_"):
            yield tree_util.GetAttrKey(name), part


def _is_compared_by_parts(value: Any) -> bool:
    """Returns whether JAX takes an object apart, or its class defines equality."""
    equality = static(type(value), "__eq__")
    if is_in_place(value) or equality is not object.__eq__:
        return True
    return not tree_util.all_leaves((value,))
