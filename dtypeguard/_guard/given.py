"""Trees as they came in, whatever is done to their containers afterwards."""

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from jax import tree_util

# Whose keys JAX sorts.
_DICTS = (dict, defaultdict)


class Given:
    """A tree that goes to a function which may change the containers it is given.

    The function is called with `own()`: what came in is still known here afterwards, and
    what the caller holds is as it was.

    Attributes:
        leaves: of the tree, as they came in.
        treedef: its structure.
    """

    def __init__(self, tree: Any):
        orders = []

        def note(node):
            if type(node) in _DICTS:
                orders.append(list(node))
            return False

        self.leaves, self.treedef = tree_util.tree_flatten(tree, is_leaf=note)
        is_sorted = all(order == sorted(order) for order in orders)
        self._orders = [] if is_sorted else orders

    def own(self) -> Any:
        """The tree in containers that nobody else has.

        A dict keeps the order of its keys: what is added up over them has other last bits
        in another order.
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

    def map(self, function: Callable[[Any], Any]) -> "Given":
        """The tree with each leaf as `function` maps it."""
        mapped = copy.copy(self)
        mapped.leaves = [function(leaf) for leaf in self.leaves]
        return mapped
