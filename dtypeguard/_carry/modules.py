"""How libraries treat their modules: which numbers are constants, what changes in place.

This file imports none of the libraries. Whoever has a module of one has imported it.
"""

import dataclasses
import functools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import tree_util

from .._leaves.dtypes import is_python_number
from .._leaves.types import Convert, Key, Leaf, NNXObject, PyTree


def constant_positions(tree: PyTree, leaves: Sequence[Leaf]) -> frozenset[int]:
    """Returns the positions of the leaves that are Python numbers in an Equinox module.

    Equinox treats them as constants: `filter_jit` holds them static. Anywhere else, in a
    dict, a NamedTuple or a Flax dataclass, `jit` makes an array of a Python number.
    """
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return frozenset()
    # Most trees have none, and the second walk is slow.
    if not any(map(is_python_number, leaves)):
        return frozenset()

    def is_module(node):
        return isinstance(node, equinox.Module)

    positions = set()
    start = 0
    for node in tree_util.tree_leaves(tree, is_leaf=is_module):
        node_structure = tree_util.tree_structure(node)
        end = start + node_structure.num_leaves
        # All inside of a module: it may hold a dict, and that is part of it.
        if is_module(node):
            for position in range(start, end):
                if is_python_number(leaves[position]):
                    positions.add(position)
        start = end
    return frozenset(positions)


def nnx_types() -> tuple[type, ...]:
    """Returns the types of NNX objects; none if Flax NNX was not imported."""
    nnx: Any = sys.modules.get("flax.nnx")
    if not hasattr(nnx, "Pytree"):
        return ()  # also of Flax before 0.12
    return (nnx.Pytree, nnx.Variable)


def is_in_place(thing: object) -> bool:
    """Returns whether a thing is a Flax NNX object, which a step changes in place."""
    return isinstance(thing, nnx_types())


def objects_by_path(tree: PyTree) -> dict[str, NNXObject]:
    """Returns the NNX objects of a tree, by path."""
    # Most trees have none, and paths are slow.
    types = nnx_types()
    if not _nodes_of(tree, types):
        return {}
    pairs, _ = tree_util.tree_flatten_with_path(tree, is_leaf=is_in_place)
    objects = {}
    for path, node in pairs:
        if is_in_place(node):
            name = tree_util.keystr(path)
            objects[name] = node
    return objects


_Types = type | tuple[type, ...]


def _nodes_of(tree: PyTree, node_types: _Types) -> list[PyTree]:
    """Returns the nodes of some types, which are NNX objects or stand for them."""
    if not nnx_types():
        return []  # without Flax there are none

    def is_node(leaf):
        return isinstance(leaf, node_types)

    nodes = []
    for leaf in tree_util.tree_leaves(tree, is_leaf=is_node):
        if is_node(leaf):
            nodes.append(leaf)
    return nodes


def map_nodes(function: Convert, tree: PyTree, node_types: _Types) -> PyTree:
    """Returns a tree with its nodes of some types mapped; itself if it has none."""
    if not _nodes_of(tree, node_types):
        return tree

    def is_node(leaf):
        return isinstance(leaf, node_types)

    def map_node(leaf):
        if is_node(leaf):
            return function(leaf)
        return leaf

    return tree_util.tree_map(map_node, tree, is_leaf=is_node)


@tree_util.register_pytree_node_class
class Closed:
    """A Flax NNX object as a tree node without leaves; equal by type."""

    def __init__(self, node: NNXObject):
        self.node = node

    def tree_flatten(self):
        return (), self

    @classmethod
    def tree_unflatten(cls, closed_node, leaves):
        del leaves
        return closed_node

    # JAX compares the nodes of two trees. A step may return another object of the type.
    def __eq__(self, node: object) -> bool:
        if not isinstance(node, Closed):
            return False
        return type(self.node) is type(node.node)

    def __hash__(self) -> int:
        return hash(type(self.node))


def close_objects(tree: PyTree) -> PyTree:
    """Returns a tree whose NNX objects are nodes without leaves.

    Whether JAX takes them for leaves or for nodes depends on the release of Flax.
    """
    return map_nodes(Closed, tree, nnx_types())


def open_objects(tree: PyTree, copies: Mapping[int, NNXObject] | None = None) -> PyTree:
    """Returns the tree with its NNX objects again: the inverse of `close_objects`.

    Args:
        tree: has closed objects.
        copies: to put in place of objects, by the id of an object.
    """
    copy_by_id = copies or {}

    def open_object(closed_node):
        node = closed_node.node
        return copy_by_id.get(id(node), node)

    return map_nodes(open_object, tree, Closed)


# Compared by identity: values that are arrays have no truth value.
@tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(eq=False)
class Contents:
    """The contents of one Flax NNX object, as a tree."""

    node: NNXObject
    values: Mapping[str, PyTree]

    def tree_flatten_with_keys(self):
        names = tuple(self.values)
        # Keys that are strings, which JAX prints without brackets.
        items = list(self.values.items())
        return items, (Closed(self.node), names)

    @classmethod
    def tree_unflatten(cls, static, values):
        closed_node, names = static
        value_by_name = dict(zip(names, values))
        return cls(closed_node.node, value_by_name)


def contents(node: NNXObject) -> Contents:
    """Returns the present contents of a Flax NNX object."""
    values = {}
    for slot in _slots(node):
        values[slot.name] = slot.value
    return Contents(node, values)


def put_contents(node: NNXObject, values: Mapping[str, PyTree]) -> None:
    """Puts values into the Variables of a Flax NNX object, by name."""
    for slot in _slots(node):
        # A Variable that the step has added stays as it is.
        new_value = values.get(slot.name, slot.value)
        if new_value is not slot.value:
            slot.put_value(new_value)


def spread(tree: PyTree) -> PyTree:
    """Returns the tree with the `contents` of its NNX objects in their place.

    A trace needs their arrays as leaves; `gathered` is the inverse.
    """
    return map_nodes(contents, tree, nnx_types())


def gathered(tree: PyTree) -> PyTree:
    """Returns the tree with copies of its NNX objects in place of their contents.

    Two objects that share a Variable share its copy.
    """
    originals = {}
    for leaf in _nodes_of(tree, Contents):
        node_id = id(leaf.node)
        originals[node_id] = leaf.node
    if not originals:
        return tree
    # One clone of all: each by itself would have Variables of its own.
    nnx = sys.modules["flax.nnx"]
    nodes = tuple(originals.values())
    copies = nnx.clone(nodes)
    copy_by_id = dict(zip(originals, copies))

    def gather(node):
        node_id = id(node.node)
        copy = copy_by_id[node_id]
        put_contents(copy, node.values)
        return copy

    return map_nodes(gather, tree, Contents)


class _Slot(NamedTuple):
    """A place of an NNX object that holds arrays."""

    name: str  # the path in the object: `.layers[0].kernel`
    value: PyTree
    put_value: Callable[[PyTree], object]  # puts another value there


def _slots(node: NNXObject) -> Iterator[_Slot]:
    """Yields the slots of an NNX object and of all objects inside."""
    nnx = sys.modules["flax.nnx"]
    nodes = dict(nnx.iter_graph(node))
    for path, thing in nodes.items():
        name = "".join(map(_key_text, path))
        owner_path = path[:-1]
        owner = nodes.get(owner_path)
        if isinstance(thing, nnx.Variable):
            if not _is_reference(thing):
                value = thing.get_raw_value()
                yield _Slot(name, value, thing.set_raw_value)
        elif not isinstance(thing, (jax.Array, np.ndarray)):
            continue  # an object, whose parts follow
        elif isinstance(owner, (dict, list)):
            key = path[-1]
            # pyright knows one kind of key for a dict or a list.
            set_item: Any = operator.setitem
            put_value = functools.partial(set_item, owner, key)
            yield _Slot(name, thing, put_value)
        elif is_in_place(owner) and not isinstance(owner, nnx.Variable):
            attribute = str(path[-1])  # an item of a List has a number for its name
            put_value = functools.partial(setattr, owner, attribute)
            yield _Slot(name, thing, put_value)


def _key_text(key: Key) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}"


def _is_reference(variable: NNXObject) -> bool:
    # The type of a JAX reference cannot change.
    if getattr(variable, "hijax", False):
        return True
    return bool(getattr(variable, "ref", False))
