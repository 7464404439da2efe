"""Puts the leaves of a state into the tree of a record, where only containers differ.

NumPy, Orbax without a target and msgpack return lists and dicts for tuples, NamedTuples and
modules.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jax import tree_util

from .._leaves.arguments import is_subtree
from .._leaves.dtypes import dtype_of, kind, native
from .._leaves.errors import DtypeDriftError, more
from .._leaves.key_path import KeyPath, TreeName, key_paths, key_value
from .._leaves.leaf_change import LeafChange
from .._leaves.leaf_type import type_or_class
from .._leaves.table import FEW, Table
from .._leaves.types import Leaf, PyTree

# Keys of tuples, of lists, and of nodes that are registered without keys.
_POSITIONS = (tree_util.SequenceKey, tree_util.FlattenedIndexKey)
_ABSENT_CHILD = object()  # None is a node


class _Container:
    """A node of a tree with its children by name; a leaf has none."""

    def __init__(self, tree: PyTree):
        def is_child(node):
            return node is not tree

        pairs, self.structure = tree_util.tree_flatten_with_path(tree, is_leaf=is_child)
        # A leaf is its own child, at an empty path.
        keys = [path[0] for path, _ in pairs if path]
        # As text: a loader makes the keys "0" and "1" of the positions of a tuple.
        names = [str(key_value(key)) for key in keys]
        self.has_names = not any(isinstance(key, _POSITIONS) for key in keys)
        if len(set(names)) < len(names):
            # Names that two children share tell neither: their positions do.
            names = list(map(str, range(len(names))))
            self.has_names = False
        self.keys = dict(zip(names, keys))
        children = [child for _, child in pairs]
        self.children = dict(zip(names, children))

    def describe_children(self) -> str:
        """Returns the names of the children, or their number."""
        names = list(self.keys)
        if not self.has_names:
            return str(len(names))
        listed = ", ".join(names[:FEW])
        if len(names) > FEW:
            return f"{listed}, ..."
        return listed


@dataclasses.dataclass(frozen=True)
class Matched:
    """The leaves of a loaded state in the order of a record.

    A child of a record's node is the child of that name in the loaded node; where a list or
    a tuple was loaded, the child at that position.

    Attributes:
        leaves: one for each leaf of the record.
        changes: the containers that have another type in the record.
    """

    leaves: list[Leaf]
    changes: list[LeafChange]

    def add(self, record: PyTree, loaded: PyTree, path: KeyPath, is_guess: bool) -> None:
        """Adds the leaves of a subtree.

        A list in place of a NamedTuple or a module has lost the names. Below it the match
        is a guess, and the shapes and kinds of all leaves have to agree as well.
        """
        if tree_util.all_leaves([record]):
            is_match = loaded is not None and not is_subtree(loaded)
            if is_match and is_guess:
                is_match = _are_alike(record, loaded)
            if not is_match:
                raise _tree_error(path, record, loaded, "load what was recorded")
            self.leaves.append(loaded)
            return
        if isinstance(loaded, np.ndarray) and loaded.dtype == object:
            # np.save makes such an array of a tuple or a dict.
            loaded = loaded.tolist()
        node = _Container(record)
        children = _children_for(record, loaded, path)
        if type(record) is not type(loaded) and tree_util.tree_leaves(record):
            is_by_position = type(loaded) in (list, tuple)
            how = "by position" if is_by_position else "by key"
            names = (type(loaded).__name__, type(record).__name__)
            self.changes.append(LeafChange(path, *names, how))
            # Between a list and a tuple, positions are all there is.
            has_lost_names = node.has_names or not isinstance(record, (list, tuple))
            if is_by_position and has_lost_names:
                is_guess = True
        for name, child in node.children.items():
            child_path = (*path, node.keys[name])
            self.add(child, children.get(name), child_path, is_guess)


def match_containers(record: PyTree, loaded: PyTree) -> Matched:
    """Returns the leaves of a loaded state in the order of a record.

    Raises:
        DtypeDriftError: for the first place where more than containers differ.
    """
    matched = Matched([], [])
    path = (TreeName("state"),)
    try:
        matched.add(record, loaded, path, is_guess=False)
    except DtypeDriftError:
        # As many fields as the state has children may have matched by position.
        remedy = _remedy_for_wrapper(record, loaded)
        if remedy is None:
            raise
        raise _tree_error(path, record, loaded, remedy) from None
    return matched


def _children_for(record: PyTree, loaded: PyTree, path: KeyPath) -> dict[str, PyTree]:
    """Returns the children of a loaded node by their names in the record, or raises."""
    node = _Container(record)
    loaded_node = _Container(loaded)
    children = loaded_node.children
    is_empty = not tree_util.tree_leaves(record)
    if node.structure == loaded_node.structure and not is_empty:
        return dict(zip(node.keys, children.values()))
    if type(loaded) in (list, tuple) and _fits_by_position(record, node, loaded):
        return dict(zip(node.keys, loaded))
    # Those of a list or of another class may be in another order than the record's.
    is_keyed = isinstance(loaded, Mapping) or hasattr(loaded, "_fields")
    has_keys = is_keyed and loaded_node.has_names
    has_shared_names = has_keys and not children.keys().isdisjoint(node.children)
    if not (is_empty or has_shared_names):
        raise _tree_error(path, record, loaded, _remedy_for_node(record, loaded))
    for name, child in node.children.items():
        # An empty child, such as an EmptyState, may be missing.
        if name not in children and tree_util.tree_leaves(child):
            key = node.keys[name]
            raise _tree_error((*path, key), child, _ABSENT_CHILD, "load it as well")
    for below, leaf in zip(key_paths(loaded), tree_util.tree_leaves(loaded)):
        name = str(key_value(below[0]))
        if is_empty or name not in node.children:
            raise _tree_error((*path, *below), _ABSENT_CHILD, leaf, "leave it out")
    return children


def _fits_by_position(record: PyTree, node: _Container, loaded: PyTree) -> bool:
    """Returns whether a list or tuple holds the children of a node in its order."""
    if len(loaded) != len(node.children):
        return False
    if isinstance(record, Mapping):
        return False  # JAX sorts its keys, and a loader may not
    if not dataclasses.is_dataclass(record):
        return True
    # The fields of a dataclass may be registered in another order than they are defined in.
    defined = []
    for field in dataclasses.fields(record):
        if field.name in node.keys:
            defined.append(field.name)
    # None is defined if it was registered without keys: positions are all there is.
    return defined in ([], list(node.keys))


def _are_alike(record: Leaf, loaded: Leaf) -> bool:
    """Returns whether two leaves agree in shape and kind."""
    record_kind = kind(dtype_of(record))
    loaded_kind = kind(dtype_of(native(loaded)))
    if record_kind != loaded_kind:
        return False
    if record_kind is None:
        return True
    return np.shape(record) == np.shape(loaded)


def _remedy_for_wrapper(record: PyTree, loaded: PyTree) -> str | None:
    """Returns what to restore if a wrapper, such as MultiSteps, is new or gone."""
    for name in getattr(record, "_fields", ()):
        if _can_match(getattr(record, name), loaded):
            return f"restore opt.init(params)._replace({name}=state)"
    for name in getattr(loaded, "_fields", ()):
        if _can_match(record, getattr(loaded, name)):
            return f"restore state.{name}"
    return None


def _can_match(record: PyTree, loaded: PyTree) -> bool:
    """Returns whether the leaves of a state fit a record, which has at least one."""
    matched = Matched([], [])
    try:
        matched.add(record, loaded, (), is_guess=False)
    except DtypeDriftError:
        return False
    return bool(matched.leaves)


def _remedy_for_node(record: PyTree, loaded: PyTree) -> str:
    """Returns what to load in place of a node."""
    if type(record) is type(loaded) and not isinstance(record, (list, tuple, Mapping)):
        return "load it with the static fields of the record"
    node = _Container(record)
    node_type = "dict" if node.has_names else "list"
    return f"load a {node_type} of {node.describe_children()}"


def _tree_error(
    path: KeyPath, record: PyTree, loaded: PyTree, remedy: str
) -> DtypeDriftError:
    """Returns the error for the first place where a state does not match its record."""
    before = _describe_node(record)
    after = _describe_node(loaded)
    change = LeafChange(path, before, after, remedy)
    table = Table("The state has another tree than the record:", [change])
    return DtypeDriftError(f"{table}{more('checkpoints')}", table.rows())


def _describe_node(tree: PyTree) -> str | None:
    """Returns a leaf or a container as a message describes it; None if it is absent."""
    if tree is _ABSENT_CHILD:
        return None
    if tree is None:
        return "None"
    if tree_util.all_leaves([tree]):
        return str(type_or_class(tree))
    node = _Container(tree)
    name = type(tree).__name__
    if node.keys:
        return f"{name} of {node.describe_children()}"
    return name
