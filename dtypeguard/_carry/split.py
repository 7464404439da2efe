"""Splits a tree into its array leaves and the rest."""

import copy
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
from jax import tree_util

from .._leaves.compat import Ref
from .._leaves.dtypes import dtype_of, is_array
from .._leaves.key_path import KeyPath, key_paths, path_text, path_texts
from .._leaves.leaf_type import LeafType, traced_type
from .._leaves.types import Convert, Leaf, NNXObject, PyTree
from .modules import Contents, constant_positions, contents, put_contents
from .tracing import eval_shape_with_aux


def _is_data(leaf: Leaf) -> bool:
    if dtype_of(leaf) is not None:
        return True
    if not is_array(leaf):
        return False
    # Such as the keys of `jax.random`.
    return jnp.issubdtype(leaf.dtype, jax.dtypes.extended)


class SplitTree:
    """A tree split into array leaves and the rest, which `merged` puts together again.

    `equinox.partition` would rebuild nodes around None, and a dataclass may check the shape
    of its fields. `merged` builds each node once, around its leaves.

    Args:
        tree: any tree.
        static: types of leaves that are no arrays, such as `float`.
        is_array: whether a leaf is an array.
    """

    def __init__(
        self,
        tree: PyTree,
        static: Collection[type] = (),
        is_array: Callable[[Leaf], bool] = _is_data,
    ):
        self.tree = tree
        self._leaves, self.treedef = tree_util.tree_flatten(tree)
        fixed = constant_positions(tree, self._leaves)
        # A mask and no tree of None: a node may refuse None for a field.
        self._is_array = []
        self.arrays = []
        for i, leaf in enumerate(self._leaves):
            is_static = type(leaf) in static
            is_constant = is_static or i in fixed
            is_data = is_array(leaf) and not is_constant
            self._is_array.append(is_data)
            if is_data:
                self.arrays.append(leaf)

    @functools.cached_property
    def key_paths(self) -> list[KeyPath]:
        """The paths of the array leaves."""
        paths = key_paths(self.tree)
        array_paths = itertools.compress(paths, self._is_array)
        return list(array_paths)

    @property
    def paths(self) -> list[str]:
        """The paths of the array leaves, as `jax.tree_util.keystr` prints them."""
        return [path_text(path) for path in self.key_paths]

    def constants_by_path(self) -> dict[str, Leaf]:
        """Returns the leaves that are no arrays, by path."""
        constants = {}
        paths = path_texts(self.tree)
        for path, leaf, is_data in zip(paths, self._leaves, self._is_array):
            # A JAX reference is no constant: its array changes.
            if is_data or isinstance(leaf, Ref):
                continue
            constants[path] = leaf
        return constants

    def emptied(self) -> "SplitTree":
        """Returns a copy without arrays, for use after the trace whose tracers they are."""
        emptied = copy.copy(self)
        emptied.key_paths = self.key_paths  # read from the tree, which goes
        emptied.tree = None
        emptied.arrays = []
        nothing = itertools.repeat(None)
        emptied._leaves = self._leaves_with(nothing)
        return emptied

    def merged(self, arrays: Sequence[Leaf]) -> PyTree:
        """Returns the tree with other arrays."""
        leaves = self._leaves_with(arrays)
        return tree_util.tree_unflatten(self.treedef, leaves)

    def _leaves_with(self, arrays: Iterable[Leaf]) -> list[Leaf]:
        remaining = iter(arrays)
        leaves = []
        for leaf, is_data in zip(self._leaves, self._is_array):
            if is_data:
                leaf = next(remaining)
            leaves.append(leaf)
        return leaves


def constant_changes(
    before: SplitTree,
    after: SplitTree,
) -> Iterator[tuple[str, Leaf, Leaf]]:
    """Yields path, old and new value of each constant that comes back changed."""
    new_constants = after.constants_by_path()
    old_constants = before.constants_by_path()
    for path, old in old_constants.items():
        new = new_constants.get(path, old)
        if not _is_equal_constant(old, new):
            yield path, old, new


def _is_equal_constant(old: Leaf, new: Leaf) -> bool:
    """Returns whether `equinox.filter_jit` takes two constants for equal: 1 is 1.0."""
    # NaN does not equal itself.
    if old is new:
        return True
    try:
        return bool(old == new)
    except Exception:  # of objects whose comparison is no bool
        return True


def eval_shape(function: Callable[[PyTree], PyTree], tree: PyTree) -> PyTree:
    """Returns the shapes and dtypes of what a function returns. Nothing is allocated.

    Unlike `eqx.filter_eval_shape`, it does not import Equinox, and traces no NumPy array.
    """

    def of_arrays(arrays):
        result = function(split.merged(arrays))
        result = tree_util.tree_map(_without_reference, result)
        returned = SplitTree(result, is_array=_is_traced)
        return returned.arrays, returned.emptied()

    # NumPy arrays stay values: an `init` may branch on them.
    split = SplitTree(tree, is_array=_is_traced)
    shapes, returned = eval_shape_with_aux(of_arrays, split.arrays)
    return returned.merged(shapes)


def _is_traced(leaf: Leaf) -> bool:
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))


def _without_reference(leaf: Leaf) -> Leaf:
    """Returns the shape of a JAX reference, which must not outlive its trace."""
    if isinstance(leaf, Ref):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return leaf


# JAX sorts the keys of these.
DICTS = (dict, defaultdict)


class Snapshot:
    """A tree as it came in, for a function that may change the containers of a copy.

    `SplitTree` separates arrays for a trace. A snapshot keeps all leaves in one list, by
    which what comes back is compared.

    Attributes:
        leaves: all leaves, in the order of JAX.
        treedef: the structure of the tree.
        constant_positions: which of the leaves are constants of an Equinox module.
    """

    def __init__(self, tree: PyTree):
        orders = []

        def note_order(node):
            if type(node) in DICTS:
                order = list(node)
                orders.append(order)
            return False

        self.leaves, self.treedef = tree_util.tree_flatten(tree, is_leaf=note_order)
        self.constant_positions = constant_positions(tree, self.leaves)
        # Most are sorted, and need no second walk in each copy.
        self._orders = []
        for order in orders:
            if order != sorted(order):
                self._orders = orders

    def copy(self) -> PyTree:
        """Returns the tree in new containers.

        The keys of a dict have their order: a sum over its values depends on it.
        """
        tree = tree_util.tree_unflatten(self.treedef, self.leaves)
        orders = iter(self._orders)

        def restore_order(node):
            if type(node) in DICTS:
                for key in next(orders):
                    node[key] = node.pop(key)
            return False

        if self._orders:
            tree_util.tree_flatten(tree, is_leaf=restore_order)
        return tree

    def with_leaves(self, leaves: Sequence[Leaf]) -> PyTree:
        """Returns the tree in new containers, with other leaves."""
        return self._replaced(leaves).copy()

    def _replaced(self, leaves: Sequence[Leaf]) -> "Snapshot":
        snapshot = copy.copy(self)
        snapshot.leaves = leaves
        return snapshot

    def data(self) -> list[Leaf]:
        """Returns the leaves without the constants."""
        leaves = []
        for i, leaf in enumerate(self.leaves):
            if i not in self.constant_positions:
                leaves.append(leaf)
        return leaves

    def map(self, function: Callable[..., Leaf], *columns: Sequence[Leaf]) -> "Snapshot":
        """Returns a snapshot with a function applied to all leaves but the constants.

        Args:
            function: takes a leaf, and the item at its place in each of `columns`.
            *columns: sequences of as many items as the tree has leaves.
        """
        leaves = []
        for i, (leaf, *operands) in enumerate(zip(self.leaves, *columns)):
            if i not in self.constant_positions:
                leaf = function(leaf, *operands)
            leaves.append(leaf)
        return self._replaced(leaves)


def map_data(function: Convert, tree: PyTree) -> PyTree:
    """Returns a tree in new containers, with a function applied to its data.

    The Python numbers of an Equinox module are constants, and stay as they are.
    """
    return Snapshot(tree).map(function).copy()


class ObjectSnapshot:
    """A Flax NNX object that a step may change in place, and its contents before that."""

    def __init__(self, label: str, node: NNXObject):
        self.label = label
        self.node = node
        self.before = contents(node).values

    def pairs(self, node: NNXObject) -> tuple[Snapshot, Contents]:
        """Returns the contents of before and those of an object now, at common paths."""
        present = contents(node).values
        before = {}
        after = {}
        # The types of both are compared, so that both have to have the same paths.
        for name, old in self.before.items():
            # A step may add Variables, and take some away.
            new = present.get(name)
            old_treedef = tree_util.tree_structure(old)
            new_treedef = tree_util.tree_structure(new)
            if old_treedef == new_treedef:
                before[name] = old
                after[name] = new
        snapshot = Snapshot(Contents(node, before))
        return snapshot, Contents(node, after)

    def restore_types(self) -> None:
        """Puts back the old contents of Variables that a failed step has retyped."""
        present = contents(self.node).values
        retyped = {}
        for name, old in self.before.items():
            new = present.get(name)
            if _types_of(old) != _types_of(new):
                retyped[name] = old
        put_contents(self.node, retyped)


def _types_of(tree: PyTree) -> list[LeafType | None]:
    leaves = tree_util.tree_leaves(tree)
    return [traced_type(leaf) for leaf in leaves]
