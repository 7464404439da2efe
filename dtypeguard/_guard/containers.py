"""Puts the leaves of a state into the tree of a record, where only containers differ.

NumPy, Orbax without a target and msgpack return lists and dicts for tuples, NamedTuples and
modules.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax import tree_util

from .._leaves.dtypes import dtype_of, kind
from .._leaves.errors import DtypeDriftError, more
from .._leaves.key_path import KeyPath, TreeName, by_path, key_value
from .._leaves.leaf_change import LeafChange
from .._leaves.leaf_type import type_or_class
from .._leaves.table import FEW, Table
from .._leaves.types import Leaf, PyTree

# Keys of tuples, of lists, and of nodes that are registered without keys.
_POSITIONS = (tree_util.SequenceKey, tree_util.FlattenedIndexKey)


class _Node:
    """A node of a tree and its children, by their names as text.

    A loader makes the keys "0" and "1" of the positions of a tuple.
    """

    def __init__(self, tree: PyTree):
        def is_child(node):
            return node is not tree

        pairs, self.structure = tree_util.tree_flatten_with_path(tree, is_leaf=is_child)
        self.keys: dict[str, Any] = {}
        self.children: dict[str, PyTree] = {}
        for i, (path, child) in enumerate(pairs):
            name = str(key_value(path[0]))
            if name in self.keys:  # 2 and "2"
                name = f"{name} ({i})"
            self.keys[name] = path[0]
            self.children[name] = child

    def __str__(self) -> str:
        """The names of the first children; the number of those with positions, or 0."""
        keys = list(self.keys.values())
        if not keys or any(isinstance(key, _POSITIONS) for key in keys):
            return str(len(keys))
        names = list(self.keys)
        if len(names) > FEW:
            names[FEW:] = ["..."]
        return ", ".join(names)


@dataclasses.dataclass(frozen=True)
class Matched:
    """The leaves of a loaded state in the order of a record.

    Attributes:
        leaves: one for each leaf of the record.
        changes: the containers that have another type in the record.
    """

    leaves: list[Leaf]
    changes: list[LeafChange]

    def add(self, record: PyTree, loaded: PyTree, path: KeyPath, is_guess: bool) -> None:
        """Adds the leaves of a subtree.

        A child of a record's node is the child of that name in the loaded node; where a
        list or a tuple was loaded, the child at that position. A list in place of a
        NamedTuple or a module has lost the names. Below it the match is a guess, and the
        shapes and kinds of all leaves have to agree as well.
        """
        if not tree_util.tree_leaves(record):
            # An empty child, such as an EmptyState, may be missing or another one.
            for below, leaf in by_path(loaded).items():
                raise _tree_error((*path, *below), None, leaf, "leave it out")
            return
        if tree_util.all_leaves([record]):
            is_leaf = loaded is not None and tree_util.all_leaves([loaded])
            if not is_leaf or (is_guess and not _are_alike(record, loaded)):
                raise _tree_error(path, record, loaded, "load what was recorded")
            self.leaves.append(loaded)
            return
        if isinstance(loaded, np.ndarray) and loaded.dtype == object:
            # np.save makes such an array of a tuple or a dict.
            loaded = loaded.tolist()
        if loaded is None or tree_util.all_leaves([loaded]):
            raise _node_error(path, record, loaded)
        node = _Node(record)
        children = _children_for(record, node, loaded, path)
        if type(record) is not type(loaded):
            is_by_position = type(loaded) in (list, tuple)
            # Between a list and a tuple, positions are all there is.
            is_guess |= is_by_position and type(record) not in (list, tuple)
            how = "by position" if is_by_position else "by key"
            names = (type(loaded).__name__, type(record).__name__)
            self.changes.append(LeafChange(path, *names, how))
        for name, child in node.children.items():
            self.add(child, children.get(name), (*path, node.keys[name]), is_guess)


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


def _children_for(
    record: PyTree, node: _Node, loaded: PyTree, path: KeyPath
) -> dict[str, PyTree]:
    """Returns the children of a loaded node by their names in the record, or raises."""
    loaded_node = _Node(loaded)
    children = loaded_node.children
    is_list = type(loaded) in (list, tuple)
    is_in_order = is_list and len(children) == len(node.keys) and _has_order(record, node)
    if is_in_order or node.structure == loaded_node.structure:
        return dict(zip(node.keys, children.values()))
    # Those of a list or of another class may be in another order than the record's.
    has_names = isinstance(loaded, Mapping) or hasattr(loaded, "_fields")
    if not has_names or children.keys().isdisjoint(node.keys):
        raise _node_error(path, record, loaded)
    for name, child in children.items():
        if name not in node.keys and tree_util.tree_leaves(child):
            raise _tree_error((*path, loaded_node.keys[name]), None, child, "leave it out")
    return children


def _has_order(record: PyTree, node: _Node) -> bool:
    """Returns whether the order of a record's children is that of a list of them."""
    if isinstance(record, Mapping):
        return False  # JAX sorts its keys, and a loader may not
    if not dataclasses.is_dataclass(record):
        return True
    # The fields of a dataclass may be registered in another order than they are defined in.
    names = [field.name for field in dataclasses.fields(record)]
    defined = [name for name in names if name in node.keys]
    # None is defined if it was registered without keys: positions are all there is.
    return defined in ([], list(node.keys))


def _are_alike(record: Leaf, loaded: Leaf) -> bool:
    """Returns whether two leaves agree in shape and kind."""
    record_kind = kind(dtype_of(record))
    if record_kind != kind(dtype_of(loaded)):
        return False
    return record_kind is None or np.shape(record) == np.shape(loaded)


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


def _node_error(path: KeyPath, record: PyTree, loaded: PyTree) -> DtypeDriftError:
    """Returns the error for another node than that of a record."""
    children = str(_Node(record))
    node_type = "list" if children.isdigit() else "dict"
    return _tree_error(path, record, loaded, f"load a {node_type} of {children}")


def _tree_error(
    path: KeyPath, record: PyTree, loaded: PyTree, remedy: str
) -> DtypeDriftError:
    """Returns the error for the first place where a state does not match its record."""
    change = LeafChange(path, _described(record), _described(loaded), remedy)
    table = Table("The state has another tree than the record:", [change])
    return DtypeDriftError(f"{table}{more('checkpoints')}", table.rows())


def _described(tree: PyTree) -> Any:
    """Returns a leaf or a container as a message describes it; None if it is absent."""
    if tree is None:
        return None
    if tree_util.all_leaves([tree]):
        return type_or_class(tree)
    return f"{type(tree).__name__} of {_Node(tree)}"
