"""The items of the result of a step, and the carry among them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jax import tree_util

from .._leaves.dtypes import dtype_of, fits
from .._leaves.key_path import key_value
from .._leaves.leaf_type import type_or_class
from .._leaves.types import Key, Leaf, PyTree, PyTreeDef
from .modules import close_objects, is_in_place
from .split import DICTS


def structure(tree: PyTree) -> PyTreeDef:
    """Returns the structure of a tree; a Flax NNX object is a node without leaves."""
    closed = close_objects(tree)
    return tree_util.tree_structure(closed)


def has_structure_of(before: PyTree, after: PyTree) -> bool:
    """Returns whether two trees have one structure."""
    return structure(before) == structure(after)


def is_alike(before: PyTree, after: PyTree) -> bool:
    """Returns whether a guard could cast one tree to the types of another."""
    if not has_structure_of(before, after):
        return False
    closed_before = close_objects(before)
    closed_after = close_objects(after)
    old_leaves = tree_util.tree_leaves(closed_before)
    new_leaves = tree_util.tree_leaves(closed_after)
    # Two empty trees prove nothing: None is also what a step without results returns.
    if not old_leaves:
        return False
    return all(map(_is_castable, old_leaves, new_leaves))


def _is_castable(old: Leaf, new: Leaf) -> bool:
    target = dtype_of(old)
    source = dtype_of(new)
    if source is None or target is None:
        return source is target
    old_shape = np.shape(old)
    new_shape = np.shape(new)
    if old_shape != new_shape:
        return False
    return fits(source, target)


class Items:
    """The items of a result: a tuple, a dict or any other node of a tree."""

    def __init__(self, result: PyTree):
        self.result = result
        self.values: list[PyTree] = []
        if is_in_place(result):
            return  # the parts of an NNX object are no items
        values, self._treedef = tree_util.tree_flatten(result, is_leaf=self._is_inside)
        # A leaf is its own only leaf, and has no items.
        if not tree_util.treedef_is_leaf(self._treedef):
            self.values = values

    def _is_inside(self, node: PyTree) -> bool:
        return node is not self.result

    @functools.cached_property
    def keys(self) -> list[Key]:
        """The key of each item: an index, a key of a dict, the name of a field."""
        if not self.values:
            return []
        if type(self.result) in DICTS:
            # In JAX 0.4.25 the paths of a defaultdict have other keys.
            return sorted(self.result)
        pairs, _ = tree_util.tree_flatten_with_path(self.result, is_leaf=self._is_inside)
        keys: list[Key] = []
        for i, (path, _) in enumerate(pairs):
            key = key_value(path[0])
            # A key of no class of JAX's is nothing that a user writes.
            if key is path[0]:
                key = i
            keys.append(key)
        return keys

    @property
    def first(self) -> PyTree:
        """The first item; None if there are none."""
        if self.values:
            return self.values[0]
        return None

    @property
    def are_ordered(self) -> bool:
        """Whether the items have an order that the user wrote, as those of no dict have."""
        return isinstance(self.result, (tuple, list))

    def begin_with(
        self,
        trees: Sequence[PyTree],
        is_match: Callable[[PyTree, PyTree], bool],
    ) -> bool:
        """Returns whether the first items match these trees, in their order."""
        num_items = len(self.values) if self.are_ordered else 0
        if len(trees) > num_items:
            return False
        return all(map(is_match, trees, self.values))

    def index(self, key: Key) -> int | None:
        """Returns the index of the item at an int, a key or the name of a field."""
        # A dict may have ints for keys: there they are no positions.
        size = len(self.values)
        if type(key) is int and self.are_ordered and -size <= key < size:
            return key % size
        if key in self.keys:
            return self.keys.index(key)
        return None

    def indices_of_structures(self, trees: Sequence[PyTree]) -> list[int]:
        """Returns the indices of the first items that have the structures of trees.

        Empty if any tree has none, or two have the same.
        """
        structures = [structure(value) for value in self.values]
        indices: list[int] = []
        for tree in trees:
            tree_structure = structure(tree)
            if tree_structure not in structures:
                return []
            index = structures.index(tree_structure)
            # Two trees of one structure may be either item.
            if index in indices:
                return []
            indices.append(index)
        return indices

    def replaced(self, new_items: Mapping[int, PyTree]) -> PyTree:
        """Returns the result in its own type, with other items at some indices, if any."""
        # The guard tells by `is` that it had nothing to cast.
        if all(self.values[i] is value for i, value in new_items.items()):
            return self.result
        if type(self.result) in DICTS:
            # JAX would sort the keys.
            new_by_key = {}
            for i, value in new_items.items():
                key = self.keys[i]
                new_by_key[key] = value
            return self.result | new_by_key
        values = list(self.values)
        for i, value in new_items.items():
            values[i] = value
        return tree_util.tree_unflatten(self._treedef, values)

    def summary(self) -> str:
        """Returns a description for a message: `a dict with the items 'loss', 'state'`."""
        if self.result is None:
            return "None"
        if not self.keys:
            description = type_or_class(self.result)
            return str(description)
        key_texts = map(repr, self.keys)
        keys = ", ".join(key_texts)
        class_name = type(self.result).__name__
        return f"a {class_name} with the items {keys}"


@dataclasses.dataclass(frozen=True)
class ReturnedCarry:
    """The place of the carry in the result of a step.

    Attributes:
        result: what the step returned.
        numbers: which of the carries come back, by their number among those that came in.
            A step that changes an object in place need not return it.
        items: the items of the result; None if the carry is the whole result.
        indices: for each of `numbers`, the index of its item.
    """

    result: PyTree
    numbers: Sequence[int] = (0,)
    items: Items | None = None
    indices: Sequence[int] = ()

    @property
    def keys(self) -> Sequence[Key]:
        """The keys of the carries in the result; none if that is the carry."""
        if self.items is None:
            return ()
        # A NamedTuple takes no name of a field in brackets.
        if self.items.are_ordered:
            return list(self.indices)
        keys = self.items.keys
        return [keys[i] for i in self.indices]

    @property
    def values(self) -> tuple[PyTree, ...]:
        """The new carries, as the step returned them."""
        if self.items is None:
            return (self.result,)
        values = []
        for i in self.indices:
            value = self.items.values[i]
            values.append(value)
        return tuple(values)

    @property
    def others(self) -> PyTree:
        """The other results; all of the result if no carry is in it."""
        if self.items is None:
            return ()
        if not self.indices:
            return self.result
        rest = []
        for i, value in enumerate(self.items.values):
            if i not in self.indices:
                rest.append(value)
        return tuple(rest)

    def put(self, new_carries: Sequence[PyTree]) -> PyTree:
        """Returns the result with other carries; itself if they are the same."""
        if self.items is None:
            return new_carries[0]
        new_items = dict(zip(self.indices, new_carries))
        return self.items.replaced(new_items)
