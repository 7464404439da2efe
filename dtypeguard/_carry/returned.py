"""The result of a step: its items, and the place of the carry among them."""

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax import tree_util

from .._leaves.dtypes import dtype_of, fits, is_weak
from .._leaves.rows import describe
from .._leaves.types import Key, Leaf, PyTree, PyTreeDef
from .modules import closed, is_in_place
from .split import DICTS


def is_unregistered(value: object) -> bool:
    """Whether it is a dataclass that JAX treats as a leaf."""
    is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_dataclass and tree_util.all_leaves([value])


def structure(tree: PyTree) -> PyTreeDef:
    """The structure of a tree in which a Flax NNX object is a node without leaves."""
    return tree_util.tree_structure(closed(tree))


def is_alike(before: PyTree, after: PyTree) -> bool:
    """Whether a guard could cast one tree to the types of the other."""
    old, new = (tree_util.tree_leaves(closed(tree)) for tree in (before, after))
    same = structure(before) == structure(after)
    return same and bool(old) and all(map(_is_alike_leaf, old, new))


def _is_alike_leaf(old: Leaf, new: Leaf) -> bool:
    source, target = dtype_of(new), dtype_of(old)
    if source is None or target is None:
        return source is target
    return np.shape(old) == np.shape(new) and fits(source, target)


def has_other_dtypes(before: PyTree, after: PyTree) -> bool:
    """Whether a leaf that has chosen its dtype has another one after a step."""
    old, new = (tree_util.tree_leaves(closed(tree)) for tree in (before, after))
    pairs = zip(old, new)
    return any(dtype_of(a) != dtype_of(b) for a, b in pairs if not is_weak(a))


def has_same_leaves(tree: PyTree, other: PyTree) -> bool:
    """Whether two trees of one structure hold the very same leaves."""
    leaves = map(tree_util.tree_leaves, (tree, other))
    return all(map(operator.is_, *leaves))


class Items:
    """The items of a result: a tuple, a dict or any other node of a tree."""

    def __init__(self, result: PyTree):
        self.result = result
        if type(result) in (tuple, list):  # quick: eager steps pay for this in every call
            self.keys, self.values = [*range(len(result))], list(result)
            return
        if type(result) in DICTS:
            # As JAX does, but JAX 0.4.25 gives the values of a defaultdict other keys.
            self.keys = sorted(result)
            self.values = [result[key] for key in self.keys]
            return
        if is_in_place(result):
            self.keys, self.values = [], []
            return
        inside = lambda node: node is not result
        pairs, self._treedef = tree_util.tree_flatten_with_path(result, is_leaf=inside)
        # If the result is a leaf, its path is empty.
        self.keys = [_key(path[0], i) for i, (path, _) in enumerate(pairs) if path]
        self.values = [item for path, item in pairs if path]

    def index(self, key: Key) -> int | None:
        """The index of the item that an int, a key or the name of a field asks for."""
        number = type(key) is int and isinstance(self.result, (tuple, list))
        if number and -len(self.values) <= key < len(self.values):
            return key % len(self.values)
        return self.keys.index(key) if key in self.keys else None

    def like(self, structures: list[PyTreeDef]) -> list[int] | None:
        """The indices of the first item of each structure, if these are different items."""
        own = [structure(value) for value in self.values]
        if any(wanted not in own for wanted in structures):
            return None
        indices = [own.index(wanted) for wanted in structures]
        return indices if len(set(indices)) == len(indices) else None

    def replaced(self, new: Mapping[int, PyTree]) -> PyTree:
        """The result in its own type, with other items at some indices, if any."""
        if all(self.values[i] is value for i, value in new.items()):
            return self.result
        if type(self.result) in DICTS:  # which keep their order
            return self.result | {self.keys[i]: value for i, value in new.items()}
        values = [new.get(i, value) for i, value in enumerate(self.values)]
        if type(self.result) in (tuple, list):
            return type(self.result)(values)
        return tree_util.tree_unflatten(self._treedef, values)

    def summary(self) -> str:
        """What it is, for a message: `a dict with the items 'loss', 'state'`."""
        if not self.keys:
            return describe(self.result)
        keys = ", ".join(map(repr, self.keys))
        return f"a {type(self.result).__name__} with the items {keys}"


class ReturnedCarry(NamedTuple):
    """The place of the carry in the result of a step."""

    result: PyTree
    items: Items | None = None  # None if the carry is the whole result
    indices: Sequence[int] = ()  # of the carry among the items
    # Which of the carries these are: an object that a step changes in place may be missing.
    carried: Sequence[int] = (0,)

    @property
    def values(self) -> tuple[PyTree, ...]:
        """The new carry, as the step returned it."""
        if self.items is None:
            return (self.result,)
        return tuple(self.items.values[i] for i in self.indices)

    @property
    def others(self) -> tuple[PyTree, ...]:
        """The other results."""
        if self.items is None:
            return ()
        if not self.items.keys:
            return (self.result,)
        values = enumerate(self.items.values)
        return tuple(value for number, value in values if number not in self.indices)

    def put(self, new: Sequence[PyTree]) -> PyTree:
        """The result with other values for the carry; itself if nothing changes."""
        if self.items is None:
            return new[0]
        return self.items.replaced(dict(zip(self.indices, new)))


def _key(entry: object, number: int) -> Key:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return number
