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
from .._leaves.leaf_type import type_or_class
from .._leaves.table import FEW, Table
from .._leaves.types import Leaf, PyTree

# Keys of tuples, of lists, and of nodes that are registered without keys.
_POSITIONS = (tree_util.SequenceKey, tree_util.FlattenedIndexKey)


class _Container:
    """A node of a tree with its children."""

    def __init__(self, tree: PyTree):
        def is_child(node):
            return node is not tree

        pairs, self.structure = tree_util.tree_flatten_with_path(tree, is_leaf=is_child)
        self.children = [child for _, child in pairs]
        # A leaf is its own child, at an empty path.
        self.keys = [path[0] for path, _ in pairs if path]
        self.names = [str(key_value(key)) for key in self.keys]
        self.has_names = not any(isinstance(key, _POSITIONS) for key in self.keys)
        if len(set(self.names)) < len(self.names):
            # Names that two children share tell neither: their positions do.
            self.names = [str(i) for i in range(len(self.names))]
            self.has_names = False

    def describe(self) -> str:
        """Returns the names of the children, or their number."""
        if not self.has_names:
            return str(len(self.names))
        listed = ", ".join(self.names[:FEW])
        return f"{listed}, ..." if len(self.names) > FEW else listed


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
        try:
            self._match(record, loaded, path, is_guess=False)
        except DtypeDriftError:
            # As many fields as the state has children may have matched by position.
            remedy = _remedy_for_wrapper(record, loaded) if len(path) == 1 else None
            if remedy is None:
                raise
            raise _tree_error(path, record, loaded, remedy) from None

    def _match(self, record: PyTree, loaded: PyTree, path: KeyPath, is_guess: bool) -> None:
        """Adds the leaves of a subtree.

        A list in place of a NamedTuple or a module has lost the names. Below it the match
        is a guess, and the shapes and kinds of all leaves have to agree as well.
        """
        if tree_util.all_leaves([record]):
            is_leaf = loaded is not None and not is_subtree(loaded)
            if not is_leaf or (is_guess and not _are_alike(record, loaded)):
                raise _tree_error(path, record, loaded, "load what was recorded")
            self.leaves.append(loaded)
            return
        if isinstance(loaded, np.ndarray) and loaded.dtype == object:
            # np.save makes such an array of a tuple or a dict.
            loaded = loaded.tolist()
        if not tree_util.tree_leaves(record):
            # None, an EmptyState or a MaskedNode: a loader may return any empty container,
            # but no leaf. The error names the first.
            for below, leaf in zip(key_paths(loaded), tree_util.tree_leaves(loaded)):
                raise _tree_error((*path, *below), _ABSENT_NODE, leaf, "leave it out")
            return

        container = _Container(record)
        fields = _fields(record, container, loaded)
        if fields is None:
            remedy = _remedy_for_container(record, loaded)
            raise _tree_error(path, record, loaded, remedy)
        if type(record) is not type(loaded):
            is_by_position = type(loaded) in (list, tuple)
            how = "by position" if is_by_position else "by key"
            names = (type(loaded).__name__, type(record).__name__)
            self.changes.append(LeafChange(path, *names, how))
            # Between a list and a tuple, positions are all there is.
            has_lost_names = container.has_names or not isinstance(record, (list, tuple))
            is_guess = is_guess or (is_by_position and has_lost_names)
        for key, name, child in zip(container.keys, container.names, container.children):
            # An empty child, such as an EmptyState, may be missing.
            if name not in fields and tree_util.tree_leaves(child):
                raise _tree_error((*path, key), child, _ABSENT_NODE, "load it as well")
            self._match(child, fields.get(name), (*path, key), is_guess)
        for name, child in fields.items():
            if name not in container.names and tree_util.tree_leaves(child):
                key = tree_util.DictKey(name)
                raise _tree_error((*path, key), _ABSENT_NODE, child, "leave it out")


def _fields(
    record: PyTree, container: _Container, loaded: PyTree
) -> dict[str, PyTree] | None:
    """Returns the children of a loaded container by their names in the record.

    None if neither names nor positions tell which child is which.
    """
    loaded_container = _Container(loaded)
    if container.structure == loaded_container.structure:
        return dict(zip(container.names, loaded_container.children))
    if _fits_by_position(record, container, loaded):
        return dict(zip(container.names, loaded))
    if isinstance(loaded, Mapping):
        fields = {str(key): child for key, child in loaded.items()}
    elif hasattr(loaded, "_fields") and container.has_names:
        fields = loaded._asdict()
    else:
        return None
    if len(fields) < len(loaded) or fields.keys().isdisjoint(container.names):
        return None  # the keys 1 and "1" are two, with one name
    return fields


def _fits_by_position(record: PyTree, container: _Container, loaded: PyTree) -> bool:
    """Returns whether a list or tuple holds the children of a container in its order."""
    if type(loaded) not in (list, tuple) or len(loaded) != len(container.keys):
        return False
    if isinstance(record, Mapping):
        return False  # JAX sorts its keys, and a loader may not
    if not dataclasses.is_dataclass(record):
        return True
    # The fields of a dataclass may be registered in another order than they are defined in.
    names = [field.name for field in dataclasses.fields(record)]
    defined = [name for name in names if name in container.names]
    # None is defined if it was registered without keys: positions are all there is.
    return defined in ([], container.names)


def _are_alike(record: Leaf, loaded: Leaf) -> bool:
    """Returns whether two leaves agree in shape and kind."""
    record_kind = kind(dtype_of(record))
    if record_kind != kind(dtype_of(native(loaded))):
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


def _remedy_for_container(record: PyTree, loaded: PyTree) -> str:
    """Returns what to load in place of a container."""
    if type(record) is type(loaded) and not isinstance(record, (list, tuple, Mapping)):
        return "load it with the static fields of the record"
    container = _Container(record)
    node_type = "dict" if container.has_names else "list"
    return f"load a {node_type} of {container.describe()}"


def _can_match(record: PyTree, loaded: PyTree) -> bool:
    """Returns whether the leaves of a state fit a record, which has at least one."""
    try:
        return bool(Matched(record, loaded, ()).leaves)
    except DtypeDriftError:
        return False


_ABSENT_NODE = object()  # None is a node


def _tree_error(
    path: KeyPath, record: PyTree, loaded: PyTree, remedy: str
) -> DtypeDriftError:
    """Returns the error for the first place where a state does not match its record."""
    change = LeafChange(path, _describe_node(record), _describe_node(loaded), remedy)
    table = Table("The state has another tree than the record:", [change])
    return DtypeDriftError(f"{table}{more('checkpoints')}", table.rows())


def _describe_node(tree: PyTree) -> str | None:
    """Returns a leaf or a container as a message describes it; None if it is absent."""
    if tree is _ABSENT_NODE:
        return None
    if tree is None:
        return "None"
    if tree_util.all_leaves([tree]):
        return str(type_or_class(tree))
    container = _Container(tree)
    name = type(tree).__name__
    return f"{name} of {container.describe()}" if container.keys else name
