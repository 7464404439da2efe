"""Trees as they came in, even if their containers change later."""

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from jax import tree_util

from .._leaves.rows import type_of
from .._leaves.types import Leaf, NNXObject, PyTree, PyTreeDef
from .modules import Contents, constants, contents, put_contents

# JAX sorts the keys of these.
DICTS = (dict, defaultdict)


class Snapshot:
    """A tree to pass to a function that may change its containers.

    The function gets a `copy()`. The snapshot still knows what came in, and the caller's
    containers do not change.
    """

    def __init__(self, tree: PyTree):
        orders = []

        def note(node):
            if type(node) in DICTS:
                orders.append(list(node))
            return False

        self.leaves, self.treedef = tree_util.tree_flatten(tree, is_leaf=note)
        self.constants = constants(tree, self.leaves)
        is_sorted = all(order == sorted(order) for order in orders)
        self._orders = [] if is_sorted else orders

    def copy(self) -> PyTree:
        """The tree in new containers.

        Preserves the order of keys in a dict: float sums over a dict depend on it.
        """
        tree = tree_util.tree_unflatten(self.treedef, self.leaves)
        orders = iter(self._orders)

        def reorder(node):
            if type(node) in DICTS:
                for key in next(orders):
                    node[key] = node.pop(key)
            return False

        if self._orders:
            tree_util.tree_flatten(tree, is_leaf=reorder)
        return tree

    def with_leaves(self, leaves: Sequence[Leaf]) -> PyTree:
        """The tree in new containers, with these for its leaves."""
        mapped = copy.copy(self)
        mapped.leaves = leaves
        return mapped.copy()

    def data(self) -> list[Leaf]:
        """The leaves without the constants."""
        return [x for number, x in enumerate(self.leaves) if number not in self.constants]

    def map(self, function: Callable[..., Leaf], *others: Sequence[Leaf]) -> "Snapshot":
        """Maps a function over the leaves, except the constants."""
        leaves = [
            each[0] if number in self.constants else function(*each)
            for number, each in enumerate(zip(self.leaves, *others))
        ]
        if all(new is old for new, old in zip(leaves, self.leaves)):
            return self
        mapped = copy.copy(self)
        mapped.leaves = leaves
        return mapped


class HeldTree:
    """A Flax NNX object that a step may change in place, and what it held before."""

    def __init__(self, label: str, node: NNXObject):
        self.label = label
        self.node = node
        self.before = contents(node)

    def pairs(self, node: NNXObject) -> tuple[Snapshot, Contents]:
        """What was held before and what an object holds now, at the paths of both.

        A Variable that the step adds or removes, such as a cache, has no type to keep.
        """
        now = contents(node)
        both = [
            name
            for name, value in self.before.values.items()
            if name in now.values and _structure(value) == _structure(now.values[name])
        ]
        return Snapshot(self.before.only(both)), now.only(both)

    def put(self, held: Contents) -> None:
        """Puts these contents into the object."""
        put_contents(self.node, held.values)

    def restore(self) -> None:
        """Puts the old contents back."""
        self.put(self.before)

    def restore_types(self) -> None:
        """Puts the old contents back where the new ones have another type."""
        before, now = self.pairs(self.node)
        old = before.copy()
        same = lambda a, b: type_of(a) == type_of(b) and np.shape(a) == np.shape(b)
        self.put(tree_util.tree_map(lambda a, b: b if same(a, b) else a, old, now))


def _structure(tree: PyTree) -> PyTreeDef:
    return tree_util.tree_structure(tree)
