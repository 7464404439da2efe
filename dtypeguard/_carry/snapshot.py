"""Trees as they came in, whatever is done to their containers afterwards."""

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from jax import tree_util

from .._leaves.modules import Contents, constants, contents, put_contents
from .._leaves.rows import type_name
from .._leaves.types import Leaf, NNXObject, PyTree, PyTreeDef

# JAX sorts the keys of these.
_DICTS = (dict, defaultdict)


class Snapshot:
    """A tree that goes to a function which may change the containers it is given.

    The function is called with `copy()`: what came in is still known here afterwards, and
    what the caller holds is as it was.

    Attributes:
        leaves: of the tree, as they came in.
        treedef: its structure.
        constants: the leaves that are no data to their library, by position.
    """

    def __init__(self, tree: PyTree):
        orders = []

        def note(node):
            if type(node) in _DICTS:
                orders.append(list(node))
            return False

        self.leaves, self.treedef = tree_util.tree_flatten(tree, is_leaf=note)
        self.constants = constants(tree, self.leaves)
        is_sorted = all(order == sorted(order) for order in orders)
        self._orders = [] if is_sorted else orders

    def copy(self) -> PyTree:
        """The tree in containers that nobody else has.

        Preserves the order of keys in a dict: float sums over a dict depend on it.
        """
        tree = tree_util.tree_unflatten(self.treedef, self.leaves)
        orders = iter(self._orders)

        def reorder(node):
            if type(node) in _DICTS:
                for key in next(orders):
                    node[key] = node.pop(key)
            return False

        if self._orders:
            tree_util.tree_flatten(tree, is_leaf=reorder)
        return tree

    def data(self) -> list[Leaf]:
        """The leaves that have a type to keep, and those that are no arrays."""
        return [x for number, x in enumerate(self.leaves) if number not in self.constants]

    def map(self, function: Callable[..., Leaf], *others: Sequence[Leaf]) -> "Snapshot":
        """The tree with each leaf as `function` maps it; this one if none changes.

        Leaves that are no data stay.

        Args:
            function: of a leaf, and of what stands in its place in the others.
            others: as many leaves each.
        """
        leaves = [
            each[0] if number in self.constants else function(*each)
            for number, each in enumerate(zip(self.leaves, *others))
        ]
        if all(new is old for new, old in zip(leaves, self.leaves)):
            return self
        mapped = copy.copy(self)
        mapped.leaves = leaves
        return mapped


class Held:
    """An object of Flax NNX that a step may change in place, and what it held before.

    Attributes:
        label: what it is called in messages.
        node: the object.
        before: what it held.
    """

    def __init__(self, label: str, node: NNXObject):
        self.label = label
        self.node = node
        self.before = contents(node)

    def pairs(self, node: NNXObject) -> tuple[Snapshot, Contents]:
        """What was held before, and what an object holds now, at paths that both have.

        A Variable that a step adds or takes away, a cache say, has no type to keep.
        """
        now = contents(node)
        both = [
            name
            for name, value in self.before.values.items()
            if name in now.values and _structure(value) == _structure(now.values[name])
        ]
        return Snapshot(self.before.only(both)), now.only(both)

    def put(self, held: Contents) -> None:
        """Has the object hold this."""
        put_contents(self.node, held.values)

    def restore(self) -> None:
        """Has the object hold what it held before."""
        self.put(self.before)

    def restore_types(self) -> None:
        """Has the object hold what it held before where that is of another type now."""
        before, now = self.pairs(self.node)
        old = before.copy()
        same = lambda a, b: type_name(a) == type_name(b) and np.shape(a) == np.shape(b)
        self.put(tree_util.tree_map(lambda a, b: b if same(a, b) else a, old, now))


def _structure(tree: PyTree) -> PyTreeDef:
    return tree_util.tree_structure(tree)
