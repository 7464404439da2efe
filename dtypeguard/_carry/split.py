"""Splits a tree into its array leaves and the rest."""

import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

import jax
import jax.numpy as jnp
from jax import tree_util

from .._leaves.compat import Ref
from .._leaves.dtypes import dtype_of, is_array
from .._leaves.leaf_type import traced_type
from .._leaves.rows import paths
from .._leaves.types import Leaf, NNXObject, PyTree
from .modules import Contents, constants, contents, put_contents


def _is_array(leaf: Leaf) -> bool:
    is_extended = is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    return is_extended or dtype_of(leaf) is not None


class SplitTree:
    """A tree split into array leaves and the rest, which `merged` puts together again.

    `equinox.partition` would rebuild nodes around None, and a dataclass may check the shape
    of its fields. `merged` builds each node once, around its leaves.
    """

    def __init__(
        self,
        tree: PyTree,
        static: Collection[type] = (),
        is_array: Callable[[Leaf], bool] = _is_array,
    ):
        self.tree = tree
        self._leaves, self.treedef = tree_util.tree_flatten(tree)
        kept = constants(tree, self._leaves)
        self._is_array = [
            is_array(leaf) and type(leaf) not in static and number not in kept
            for number, leaf in enumerate(self._leaves)
        ]
        self.arrays = self._of_arrays(self._leaves)

    def _of_arrays(self, items: Sequence[Leaf]) -> list[Leaf]:
        return [item for item, is_array in zip(items, self._is_array) if is_array]

    @functools.cached_property
    def paths(self) -> list[str]:
        """The paths of the array leaves, as `jax.tree_util.keystr` prints them."""
        return self._of_arrays(paths(self.tree))

    def constants(self) -> dict[str, Leaf]:
        """The leaves that are no arrays, by path; JAX's references are arrays here."""
        if all(self._is_array):
            return {}
        leaves = zip(paths(self.tree), self._leaves, self._is_array)
        return {path: x for path, x, is_a in leaves if not (is_a or isinstance(x, Ref))}

    def emptied(self) -> "SplitTree":
        """One without the arrays, to merge others: it keeps no traced array alive."""
        rest = copy.copy(self)
        rest.paths, rest.tree, rest.arrays = self.paths, None, []
        rest._leaves = [
            None if is_a else x for x, is_a in zip(self._leaves, self._is_array)
        ]
        return rest

    def merged(self, arrays: Sequence[Leaf]) -> PyTree:
        """The tree with these for its array leaves."""
        remaining = iter(arrays)
        pairs = zip(self._leaves, self._is_array)
        leaves = [next(remaining) if is_array else leaf for leaf, is_array in pairs]
        return tree_util.tree_unflatten(self.treedef, leaves)


def changed_constants(
    before: SplitTree, after: SplitTree
) -> Iterator[tuple[str, Leaf, Leaf]]:
    """Path, old and new value of each leaf that is no array and comes back as another."""
    old, new = before.constants(), after.constants()
    for path in filter(new.__contains__, old):
        if not (old[path] is new[path] or _is_equal(old[path], new[path])):
            yield path, old[path], new[path]


def _is_equal(old: Leaf, new: Leaf) -> bool:
    """As `equinox.filter_jit` compares what is static: 1 is 1.0."""
    try:
        return bool(old == new)
    except Exception:  # of objects whose comparison is no bool
        return True


def eval_shape(function: Callable[[PyTree], PyTree], tree: PyTree) -> PyTree:
    """The shapes and dtypes of what a function returns. Nothing runs or is allocated.

    Unlike `eqx.filter_eval_shape`, it does not import Equinox, and traces no NumPy array.
    """
    is_traced = lambda leaf: isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))
    # A function cannot return a reference. One that it made must not outlive the trace.
    closed = lambda leaf: (
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, Ref) else leaf
    )
    split = SplitTree(tree, is_array=is_traced)
    returned = []

    def of_arrays(arrays):
        result = tree_util.tree_map(closed, function(split.merged(arrays)))
        out = SplitTree(result, is_array=is_traced)
        returned[:] = [out.emptied()]
        return out.arrays

    shapes = jax.eval_shape(of_arrays, split.arrays)
    return returned[0].merged(shapes)


# JAX sorts the keys of these.
DICTS = (dict, defaultdict)


class Snapshot:
    """A tree as it came in, for a function that may change the containers of a copy."""

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
        """The tree in new containers, keys in order: sums over a dict depend on it."""
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


def map_data(function: Callable[[Leaf], Leaf], tree: PyTree) -> PyTree:
    """Returns a tree in new containers, with a function applied to each leaf of data."""
    return Snapshot(tree).map(function).copy()


class HeldTree:
    """A Flax NNX object that a step may change in place, and what it held before."""

    def __init__(self, label: str, node: NNXObject):
        self.label = label
        self.node = node
        self.before = contents(node).values

    def pairs(self, node: NNXObject) -> tuple[Snapshot, Contents]:
        """What was held before and what an object holds now, at the paths of both."""
        now, of = contents(node).values, tree_util.tree_structure
        is_same = lambda name: name in now and of(self.before[name]) == of(now[name])
        names = [*filter(is_same, self.before)]
        at_names = lambda values: Contents(node, {name: values[name] for name in names})
        return Snapshot(at_names(self.before)), at_names(now)

    def restore_types(self) -> None:
        """Puts the old contents back where the new ones have another type."""
        before, now = self.pairs(self.node)
        old = before.copy()
        same = lambda a, b: traced_type(a) == traced_type(b)
        mixed = tree_util.tree_map(lambda a, b: b if same(a, b) else a, old, now)
        put_contents(self.node, mixed.values)
