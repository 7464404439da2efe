"""Paths of leaves: JAX's tuples of keys until they are printed."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jax import tree_util

from .types import Leaf, PyTree

KeyPath = tuple[Any, ...]  # of keys that JAX does not type


@dataclasses.dataclass(frozen=True)
class TreeName:
    """The first key of a path: the name of the tree, such as `state` or a parameter."""

    name: str

    def __str__(self) -> str:
        return self.name


def key_paths(
    tree: PyTree, name: str = "", is_leaf: Callable[[PyTree], bool] | None = None
) -> list[KeyPath]:
    """Returns the path of every leaf, after the name of the tree if there is one."""
    # A path of no name is that of the tree itself: trees are compared without their names.
    first_keys: KeyPath = ()
    if name:
        first_keys = (TreeName(name),)
    pairs, _ = tree_util.tree_flatten_with_path(tree, is_leaf)
    return [(*first_keys, *path) for path, _ in pairs]


def by_path(tree: PyTree, name: str = "") -> dict[KeyPath, Leaf]:
    """Returns the leaves by path, after the name of the tree if there is one."""
    paths = key_paths(tree, name)
    return dict(zip(paths, tree_util.tree_leaves(tree)))


def path_text(path: KeyPath) -> str:
    """Returns a path as users read it: `state[0].mu['w']`."""
    return tree_util.keystr(path)


def path_texts(tree: PyTree, name: str = "") -> list[str]:
    """Returns the path of every leaf as users read it."""
    return [path_text(path) for path in key_paths(tree, name)]


def tree_name(path: KeyPath) -> str:
    """Returns the name of the tree into which a path leads; empty if it has none."""
    if not path or not isinstance(path[0], TreeName):
        return ""
    return path[0].name


def key_value(key: Any) -> Any:
    """Returns the name, the key or the index that a key of JAX holds."""
    # The classes of JAX's keys differ between releases; their attributes do not.
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return key


def last_name(path: KeyPath) -> str:
    """Returns the last key of a path as text, by which the record knows a number."""
    key = key_value(path[-1])
    return str(key)


def path_with_stars(path: KeyPath) -> str:
    """Returns a path with a star for every index and every key of a dict: `[*].mu['*']`."""
    return "".join(_key_pattern(key) for key in path)


def _key_pattern(key: Any) -> str:
    if isinstance(key, tree_util.SequenceKey):
        return "[*]"
    if not isinstance(key, tree_util.DictKey):
        return str(key)
    if isinstance(key.key, str):
        return "['*']"
    return "[*]"


def leaves_of_holders(paths: Sequence[KeyPath]) -> str:
    """Returns a number of leaves and the nodes above: `120 leaves of [0].mu and [0].nu`.

    One leaf is named itself.
    """
    if len(paths) == 1:
        return path_text(paths[0])
    # The number of keys with which all paths begin.
    depth = 0
    for keys in zip(*paths):
        if len(set(keys)) > 1:
            break
        depth += 1
    holders = set()
    for path in paths:
        holder = path[: depth + 1]
        holders.add(path_text(holder))
    if len(holders) > 3:  # more would not fit in a row
        common = paths[0][:depth]
        holders = {path_text(common)}
    names = joined(sorted(holders))
    if not names:  # leaves of several arguments have no node above them in common
        return f"{len(paths)} leaves"
    return f"{len(paths)} leaves of {names}"


def joined(names: Sequence[str]) -> str:
    """Returns names as a sentence lists them: `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    first_names = ", ".join(names[:-1])
    return f"{first_names} and {names[-1]}"
