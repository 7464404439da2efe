"""How libraries treat their modules: which numbers are constants, what changes in place.

This file imports none of the libraries. Whoever has a module of one has imported it.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import numpy as np
from jax import tree_util

from .._leaves.dtypes import is_python_number
from .._leaves.types import Convert, Key, Leaf, NNXObject, PyTree


def constants(tree: PyTree, leaves: Sequence[Leaf]) -> frozenset[int]:
    """The positions of the leaves that are Python numbers in an Equinox module.

    Equinox treats them as constants: `filter_jit` holds them static. Anywhere else, in a
    dict, a NamedTuple or a Flax dataclass, `jit` makes an array of a Python number.
    """
    equinox = sys.modules.get("equinox")
    if equinox is None or not any(map(is_python_number, leaves)):
        return frozenset()
    is_module = lambda node: isinstance(node, equinox.Module)
    found, start = set(), 0
    for node in tree_util.tree_leaves(tree, is_leaf=is_module):
        size = tree_util.tree_structure(node).num_leaves
        if is_module(node):
            inside = range(start, start + size)
            found |= {number for number in inside if is_python_number(leaves[number])}
        start += size
    return frozenset(found)


def is_in_place(thing: object) -> bool:
    """Whether a thing is a Flax NNX object, which a step changes in place."""
    return isinstance(thing, nnx_types())


class Closed:
    """A Flax NNX object as a tree node without leaves; equal by type."""

    def __init__(self, node: NNXObject):
        self.node = node

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Closed) and type(self.node) is type(other.node)

    def __hash__(self) -> int:
        return hash(type(self.node))


tree_util.register_pytree_node(Closed, lambda x: ((), x), lambda x, _: x)


def closed(tree: PyTree) -> PyTree:
    """The tree with its NNX objects as nodes without leaves; itself if it has none."""
    return _map_objects(Closed, tree, is_in_place)


def opened(tree: PyTree) -> PyTree:
    """The inverse of `closed`."""
    return _map_objects(lambda x: x.node, tree, lambda node: isinstance(node, Closed))


def _map_objects(
    function: Convert, tree: PyTree, is_object: Callable[[Leaf], bool]
) -> PyTree:
    if not nnx_types():
        return tree
    leaves, treedef = tree_util.tree_flatten(tree, is_leaf=is_object)
    if not any(map(is_object, leaves)):
        return tree
    mapped = [function(leaf) if is_object(leaf) else leaf for leaf in leaves]
    return tree_util.tree_unflatten(treedef, mapped)


def objects(tree: PyTree) -> dict[str, NNXObject]:
    """The NNX objects of a tree, by path."""
    if not nnx_types():
        return {}
    if not any(map(is_in_place, tree_util.tree_leaves(tree, is_leaf=is_in_place))):
        return {}
    nodes = tree_util.tree_flatten_with_path(tree, is_leaf=is_in_place)[0]
    return {tree_util.keystr(path): node for path, node in nodes if is_in_place(node)}


def nnx_types() -> tuple[type, ...]:
    """The types of NNX objects; empty if Flax NNX was not imported."""
    nnx = sys.modules.get("flax.nnx")
    names = ("Pytree", "Object", "Module", "Variable")
    found = (getattr(nnx, name, None) for name in names)
    return tuple(kind for kind in found if isinstance(kind, type))


@dataclasses.dataclass(eq=False)
class Contents:
    """The contents of one Flax NNX object, as a tree."""

    node: NNXObject
    values: Mapping[str, PyTree]


class _Name(str):
    """A key that `jax.tree_util.keystr` prints without brackets."""

    __slots__ = ()


def _static(held: Contents) -> tuple[Closed, tuple[str, ...]]:
    return Closed(held.node), tuple(held.values)


tree_util.register_pytree_with_keys(
    Contents,
    lambda held: ([(_Name(k), x) for k, x in held.values.items()], _static(held)),
    lambda x, values: Contents(x[0].node, dict(zip(x[1], values))),
    lambda held: (tuple(held.values.values()), _static(held)),
)


def contents(node: NNXObject) -> Contents:
    """What a Flax NNX object holds now."""
    return Contents(node, {name: value for name, value, _ in _slots(node)})


def put_contents(node: NNXObject, values: Mapping[str, PyTree]) -> None:
    """Puts values into the Variables that a Flax NNX object has."""
    for name, value, put in _slots(node):
        if values.get(name, value) is not value:
            put(values[name])


def spread(tree: PyTree) -> PyTree:
    """The tree with the `contents` of its NNX objects in their place."""
    return _map_objects(contents, tree, is_in_place)


def gathered(tree: PyTree) -> PyTree:
    """The inverse of `spread`, with copies of the NNX objects that share as these did."""
    if not nnx_types():
        return tree
    is_contents = lambda node: isinstance(node, Contents)
    leaves = tree_util.tree_leaves(tree, is_leaf=is_contents)
    nodes = {id(leaf.node): leaf.node for leaf in leaves if is_contents(leaf)}
    if not nodes:
        return tree
    copies = sys.modules["flax.nnx"].clone(tuple(nodes.values()))
    copy_of = dict(zip(nodes, copies))

    def gather(held: Contents) -> NNXObject:
        copy = copy_of[id(held.node)]
        put_contents(copy, held.values)
        return copy

    return _map_objects(gather, tree, is_contents)


def _slots(node: NNXObject) -> Iterator[tuple[str, PyTree, Callable[[PyTree], object]]]:
    """What a Flax NNX object holds: name, value, and a function that puts another there."""
    nnx = sys.modules["flax.nnx"]
    nodes = dict(nnx.iter_graph(node))
    for path, thing in nodes.items():
        owner, value, put = nodes.get(path[:-1]), thing, None
        if isinstance(thing, nnx.Variable):
            # The type of a JAX reference cannot change.
            if not (getattr(thing, "hijax", False) or getattr(thing, "ref", False)):
                value, put = _raw_value(thing), functools.partial(_put_raw, thing)
        elif isinstance(thing, (jax.Array, np.ndarray)):
            if isinstance(owner, (dict, list)):
                put = functools.partial(owner.__setitem__, path[-1])
            elif is_in_place(owner) and not isinstance(owner, nnx.Variable):
                put = functools.partial(setattr, owner, str(path[-1]))
        if put is not None:
            yield _name(path, nodes), value, put


def _raw_value(variable: NNXObject) -> PyTree:
    is_new = hasattr(variable, "get_raw_value")
    return variable.get_raw_value() if is_new else variable.raw_value


def _put_raw(variable: NNXObject, value: PyTree) -> None:
    if hasattr(variable, "set_raw_value"):
        variable.set_raw_value(value)
    else:  # Flax before 0.12
        variable.raw_value = value


def _name(path: tuple[Key, ...], nodes: Mapping[tuple[Key, ...], NNXObject]) -> str:
    def part(length: int, key: Key) -> str:
        is_item = isinstance(key, int) or isinstance(nodes.get(path[:length]), Mapping)
        return f"[{key!r}]" if is_item else f".{key}"

    return "".join(part(*each) for each in enumerate(path))
