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
from .._leaves.key_path import KeyPath, key_paths, key_value
from .._leaves.leaf_change import LeafChange
from .._leaves.leaf_type import describe
from .._leaves.table import FEW, Table
from .._leaves.types import Leaf, PyTree

# Keys of tuples, of lists, and of nodes that are registered without keys.
_POSITIONS = (tree_util.SequenceKey, tree_util.FlattenedIndexKey)


class _Node:
    """A node of a tree with its children."""

    def __init__(self, tree: PyTree):
        def is_child(node):
            return node is not tree

        pairs, self.structure = tree_util.tree_flatten_with_path(tree, is_leaf=is_child)
        self.tree = tree
        self.children = [child for _, child in pairs]
        self.keys = [path[0] for path, _ in pairs if path]  # a leaf has an empty path
        self.names = [str(key_value(key)) for key in self.keys]
        self.has_names = not any(isinstance(key, _POSITIONS) for key in self.keys)

    def __str__(self) -> str:
        if not self.keys:
            return type(self.tree).__name__
        children = _list_names(self.names) if self.has_names else len(self.names)
        return f"{type(self.tree).__name__} of {children}"


class Matched:
    """The leaves of a loaded state in the order of a record.

    Attributes:
        leaves: one for each leaf of the record.
        changes: the containers that have another type in the record.

    Raises:
        DtypeDriftError: for the first place where more than containers differ.
    """

    def __init__(self, record: PyTree, loaded: PyTree, path: KeyPath):
        self.leaves: list[Leaf] = []
        self.changes: list[LeafChange] = []
        self._match(record, loaded, path, is_guess=False)

    def _match(self, record: PyTree, loaded: PyTree, path: KeyPath, is_guess: bool) -> None:
        """Adds the leaves of a subtree.

        A list in place of a NamedTuple or a module has lost the names. Below it the match
        is a guess, and the shapes and kinds of all leaves have to agree as well.
        """
        if tree_util.all_leaves([record]):
            is_leaf = loaded is not None and not is_subtree(loaded)
            if not is_leaf or (is_guess and not _are_alike(record, loaded)):
                raise _error(path, record, loaded, "load what was recorded")
            self.leaves.append(loaded)
            return
        if isinstance(loaded, np.ndarray) and loaded.dtype == object:
            loaded = loaded.tolist()  # np.save makes such an array of a tuple or a dict
        if not tree_util.tree_leaves(record):
            # None, an EmptyState or a MaskedNode: a loader may return any empty container.
            for below, leaf in zip(key_paths(loaded), tree_util.tree_leaves(loaded)):
                raise _error((*path, *below), _ABSENT, leaf, "leave it out")
            return

        node = _Node(record)
        loaded_node = _Node(loaded)
        fields = _fields(loaded, node)
        if node.structure == loaded_node.structure:
            children = loaded_node.children
        elif fields is not None:
            children = _children_by_name(node, fields, loaded, path)
            self._note_change(record, loaded, path, "by key")
        elif _fits_by_position(node, loaded):
            children = list(loaded)
            self._note_change(record, loaded, path, "by position")
            is_guess = is_guess or node.has_names or not isinstance(record, (list, tuple))
        else:
            raise _error(path, record, loaded, _remedy(node, loaded, path))
        for key, child, loaded_child in zip(node.keys, node.children, children):
            self._match(child, loaded_child, (*path, key), is_guess)

    def _note_change(self, record: PyTree, loaded: PyTree, path: KeyPath, how: str) -> None:
        before = type(loaded)
        after = type(record)
        if before is not after:
            change = LeafChange(path, before.__name__, after.__name__, how)
            self.changes.append(change)


def _fields(loaded: PyTree, node: _Node) -> dict[str, PyTree] | None:
    """Returns the children of a loaded container by name; None if they have no names."""
    if isinstance(loaded, Mapping):
        fields = {str(key): child for key, child in loaded.items()}
        # The keys 1 and "1" are two.
        return fields if len(fields) == len(loaded) else None
    if hasattr(loaded, "_fields") and node.has_names:
        return loaded._asdict()
    return None


def _children_by_name(
    node: _Node, fields: Mapping[str, PyTree], loaded: PyTree, path: KeyPath
) -> list[PyTree]:
    """Returns the field for each child of a node; one without leaves may be missing."""
    has_common_name = any(name in fields for name in node.names)
    has_unique_names = len(set(node.names)) == len(node.names)
    if not (has_common_name and has_unique_names):
        raise _error(path, node.tree, loaded, _remedy(node, loaded, path))
    for key, name, child in zip(node.keys, node.names, node.children):
        if name not in fields and tree_util.tree_leaves(child):
            raise _error((*path, key), child, _ABSENT, "load it as well")
    for name, child in fields.items():
        if name not in node.names and tree_util.tree_leaves(child):
            key = tree_util.DictKey(name)
            raise _error((*path, key), _ABSENT, child, "leave it out")
    return [fields.get(name) for name in node.names]


def _fits_by_position(node: _Node, loaded: PyTree) -> bool:
    """Returns whether a list or tuple may stand for a node."""
    if type(loaded) not in (list, tuple) or len(loaded) != len(node.keys):
        return False
    if isinstance(node.tree, Mapping):
        return False  # JAX sorts its keys, and a loader may not
    if not dataclasses.is_dataclass(node.tree):
        return True
    # The fields of a dataclass may be registered in another order than they are defined in.
    defined = [field.name for field in dataclasses.fields(node.tree)]
    defined = [name for name in defined if name in node.names]
    return defined in ([], node.names)


def _are_alike(record: Leaf, loaded: Leaf) -> bool:
    """Returns whether two leaves agree in shape and kind."""
    record_kind = kind(dtype_of(record))
    if record_kind != kind(dtype_of(native(loaded))):
        return False
    return record_kind is None or np.shape(record) == np.shape(loaded)


def _remedy(node: _Node, loaded: PyTree, path: KeyPath) -> str:
    """Returns what to load in place of a container."""
    record = node.tree
    if type(record) is type(loaded) and not isinstance(record, (list, tuple, Mapping)):
        return "load it with the static fields of the record"
    if len(path) == 1:
        # A wrapper, such as MultiSteps, may be new since the state was saved, or gone.
        for name, child in _named_tuple_items(record):
            if _matches(child, loaded):
                return f"restore opt.init(params)._replace({name}=state)"
        for name, child in _named_tuple_items(loaded):
            if _matches(record, child):
                return f"restore state.{name}"
    if node.has_names:
        return f"load a dict of {_list_names(node.names)}"
    return f"load a list of {len(node.names)}"


def _named_tuple_items(node: PyTree) -> list[tuple[str, PyTree]]:
    return list(node._asdict().items()) if hasattr(node, "_fields") else []


def _matches(record: PyTree, loaded: PyTree) -> bool:
    """Returns whether a state could be restored to a record that has leaves."""
    try:
        return bool(Matched(record, loaded, ()).leaves)
    except DtypeDriftError:
        return False


_ABSENT = object()


def _error(path: KeyPath, record: PyTree, loaded: PyTree, remedy: str) -> DtypeDriftError:
    """Returns the error for the first place where a state does not match its record."""
    change = LeafChange(path, _describe_node(record), _describe_node(loaded), remedy)
    table = Table("The state has another tree than the record:", [change])
    return DtypeDriftError(f"{table}{more('checkpoints')}", table.rows())


def _describe_node(tree: PyTree) -> str | None:
    """Returns a leaf or a container as a message describes it; None if it is absent."""
    if tree is _ABSENT:
        return None
    if tree is None:
        return "None"
    return describe(tree) if tree_util.all_leaves([tree]) else str(_Node(tree))


def _list_names(names: list[str]) -> str:
    listed = ", ".join(names[:FEW])
    return f"{listed}, ..." if len(names) > FEW else listed
