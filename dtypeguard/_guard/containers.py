"""Puts the leaves of a state into the tree of a record, where only containers differ.

NumPy, Orbax without a target and msgpack return lists and dicts for tuples, NamedTuples and
modules.
"""

import contextlib
import dataclasses
from collections.abc import Mapping

import numpy as np
from jax import tree_util

from .._leaves.arguments import is_subtree
from .._leaves.dtypes import dtype_of, kind, native
from .._leaves.errors import DtypeDriftError, more
from .._leaves.key_path import KeyPath, key_paths
from .._leaves.leaf_change import LeafChange
from .._leaves.leaf_type import describe
from .._leaves.table import FEW, Table
from .._leaves.types import Key, Leaf, PyTree, PyTreeDef

# The keys of tuples, lists, and nodes that are registered without keys.
_PLACED = tree_util.SequenceKey, tree_util.FlattenedIndexKey


def pair(
    like: PyTree, held: PyTree, path: KeyPath, is_sure: bool = True
) -> tuple[list[Leaf], list[LeafChange]]:
    """The leaves of a loaded tree in the order of a record, and the containers that differ.

    A list in place of a NamedTuple or a module has lost the names: below it, `is_sure` is
    False, and the shapes and kinds of all leaves have to agree as well.
    """
    if tree_util.all_leaves([like]):
        if held is None or is_subtree(held) or not (is_sure or _agree(like, held)):
            raise _error(path, _shown(like), _shown(held), "load what was recorded")
        return [held], []
    if isinstance(held, np.ndarray) and held.dtype == object:
        held = held.tolist()  # np.save makes such an array of a tuple or a dict
    if not tree_util.tree_leaves(like):  # None, an EmptyState, a MaskedNode
        for below, leaf in zip(key_paths(held), tree_util.tree_leaves(held)):
            raise _error((*path, *below), None, describe(leaf), "leave it out")
        return [], []
    keys, children = _children(like)
    names, is_placed = _names(like)
    changes = []
    if _level(like) == _level(held):
        found = _children(held)[1]
    else:
        fields, how = _fields(held, is_placed), "by key"
        if fields is not None:
            found = _by_name(like, held, fields, path)
        elif (
            type(held) not in (list, tuple)
            or not _has_order(like)
            or len(held) != len(names)
        ):
            raise _error(path, _shown(like), _shown(held), _remedy(like, held, path))
        else:
            found, how = list(held), "by position"
            is_sure = is_sure and isinstance(like, (list, tuple)) and is_placed
        if type(like) is not type(held):
            names_of_types = type(held).__name__, type(like).__name__
            changes = [LeafChange(path, *names_of_types, how)]
    leaves = []
    for key, child, found_child in zip(keys, children, found):
        below = (*path, key)
        own_leaves, own_changes = pair(child, found_child, below, is_sure)
        leaves += own_leaves
        changes += own_changes
    return leaves, changes


def _error(
    path: KeyPath, before: str | None, after: str | None, remedy: str
) -> DtypeDriftError:
    """The error for the first place where a state has another tree than its record."""
    change = LeafChange(path, before, after, remedy)
    table = Table("The state has another tree than the record:", [change])
    return DtypeDriftError(f"{table}{more('checkpoints')}", table.rows())


def _by_name(
    like: PyTree, held: PyTree, fields: Mapping[str, PyTree], path: KeyPath
) -> list[PyTree]:
    """The field for each child of a node; what has no leaves may be missing."""
    keys, children = _children(like)
    names, _ = _names(like)
    if fields.keys().isdisjoint(names) or len({*names}) < len(names):
        raise _error(path, _shown(like), _shown(held), _remedy(like, held, path))
    for key, name, child in zip(keys, names, children):
        if name not in fields and tree_util.tree_leaves(child):
            below = (*path, key)
            raise _error(below, _shown(child), None, "load it as well")
    for name, child in fields.items():
        if name not in names and tree_util.tree_leaves(child):
            key = tree_util.DictKey(name)
            raise _error((*path, key), None, _shown(child), "leave it out")
    return [fields.get(name) for name in names]


def _has_order(like: PyTree) -> bool:
    """Whether a list may stand for a node: fields may be registered in another order."""
    names, _ = _names(like)
    fields = dataclasses.fields(like) if dataclasses.is_dataclass(like) else ()
    defined = [field.name for field in fields if field.name in names]
    return not isinstance(like, Mapping) and defined in ([], names)


def _children(node: PyTree) -> tuple[list[Key], list[PyTree]]:
    """The keys and the children of a node; None is a child as well."""
    pairs = tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)[0]
    return [path[0] for path, _ in pairs], [child for _, child in pairs]


def _level(node: PyTree) -> PyTreeDef:
    """The structure of a node without that of its children."""
    return tree_util.tree_structure(node, is_leaf=lambda x: x is not node)


def _names(node: PyTree) -> tuple[list[str], bool]:
    """What the children are called in a dict, and whether these are their positions."""
    keys, _ = _children(node)
    return [_name(key) for key in keys], isinstance(keys[0], _PLACED)


def _name(key: Key) -> str:
    found = (getattr(key, name, None) for name in ("name", "key", "idx"))
    return str(next((each for each in found if each is not None), key))


def _fields(held: PyTree, is_placed: bool) -> dict[str, PyTree] | None:
    """The children by name, of a dict, or of a NamedTuple where the record has names."""
    if isinstance(held, Mapping):
        fields = {str(key): child for key, child in held.items()}
        return fields if len(fields) == len(held) else None
    return held._asdict() if hasattr(held, "_fields") and not is_placed else None


def _agree(like: Leaf, held: Leaf) -> bool:
    """Whether two leaves agree in shape and kind."""
    kinds = kind(dtype_of(like)), kind(dtype_of(native(held)))
    return kinds[0] == kinds[1] and (kinds[0] is None or np.shape(like) == np.shape(held))


def _remedy(like: PyTree, held: PyTree, path: KeyPath) -> str:
    """What to load in place of a container."""
    names, is_placed = _names(like)
    if type(like) is type(held) and not isinstance(like, (list, tuple, Mapping)):
        return "load it with the static fields of the record"
    # A wrapper, such as MultiSteps, that was added or left out since the state was saved.
    for outer in (like, held) if len(path) == 1 else ():
        for name in getattr(outer, "_fields", ()):
            child = getattr(outer, name)
            with contextlib.suppress(DtypeDriftError):
                if tree_util.tree_leaves(child):
                    if outer is held:
                        pair(like, child, path)
                        return f"restore state.{name}"
                    pair(child, held, path)
                    return f"restore opt.init(params)._replace({name}=state)"
    if is_placed:
        return f"load a list of {len(names)}"
    return f"load a dict of {_listed(names)}"


def _shown(node: PyTree) -> str:
    """A leaf or a container in a message."""
    if node is None or tree_util.all_leaves([node]):
        return "None" if node is None else describe(node)
    if not _children(node)[0]:
        return type(node).__name__
    names, is_placed = _names(node)
    return f"{type(node).__name__} of {len(names) if is_placed else _listed(names)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:FEW]) + ", ..." * (len(names) > FEW)
