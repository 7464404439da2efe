"""The leaves of a call that its own program gives back in another type."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from jax import tree_util

from .._blame.why import Has, why
from .._leaves.key_path import KeyPath, key_value, tree_name
from .._leaves.leaf_type import LeafType
from .._leaves.types import Leaf, PyTreeDef
from .._program.graph import Graph
from .._program.jaxprs import open_jaxpr
from .._recording.values import is_concrete
from .._source.origin import Why
from .call import CompilingCall
from .parts import type_in_program


@dataclasses.dataclass(frozen=True)
class ReturnedLeaf:
    """A leaf of an argument that comes back in another type.

    Attributes:
        leaf_type: in which it comes back.
        why: the lines behind that.
        item: the item of the result, a tuple, that holds it; None if it is no tuple.
    """

    leaf_type: LeafType
    why: Why
    item: int | None


@dataclasses.dataclass(frozen=True)
class _ResultTree:
    """A tree in the results of a call.

    Attributes:
        structure: of the tree.
        start: the number of its first leaf among all results.
        place: the numbers of the children that lead to it.
    """

    structure: PyTreeDef
    start: int
    place: tuple[int, ...]


def returned_leaves(
    call: CompilingCall, leaves: dict[KeyPath, Leaf]
) -> dict[KeyPath, ReturnedLeaf]:
    """Returns the leaves that come back in another type, by the path of the argument."""
    if call.jaxpr is None:
        return {}
    graph = Graph(call.jaxpr)
    avals = [variable.aval for variable in open_jaxpr(call.jaxpr).outvars]
    result_shapes = [aval.shape for aval in avals]
    trees = list(_trees_in(_whole_result(call)))
    container, _ = trees[0].structure.node_data() or (None, None)
    changed = {}
    matched: set[int] = set()
    for position, name in enumerate(call.arguments):
        paths = [path for path in leaves if tree_name(path) == name]
        if call.wrapper == "flax":
            paths.sort(key=_place_in_nnx)
        shapes = [np.shape(leaves[path]) for path in paths]
        structure = _structure_in_results(call, name)
        for tree in trees:
            numbers = range(tree.start, tree.start + len(paths))
            is_free = matched.isdisjoint(numbers)
            has_shapes = shapes == result_shapes[tree.start : numbers.stop]
            if is_free and has_shapes and _is_argument(call, tree, structure, position):
                break
        else:
            continue
        matched.update(numbers)
        is_item = container in (tuple, list) and call.wrapper != "flax"
        item = tree.place[0] if is_item and tree.place else None
        for path, number in zip(paths, numbers):
            before = type_in_program(leaves[path])
            after = type_in_program(avals[number])
            if before != after:
                output = graph.outputs[number]
                attribute = "weak_type" if before.dtype == after.dtype else "dtype"
                matches = Has(attribute, getattr(graph.avals[output], attribute))
                changed[path] = ReturnedLeaf(after, why(graph, output, matches), item)
    return changed


def _structure_in_results(call: CompilingCall, name: str) -> PyTreeDef:
    """Returns the structure of an argument as it stands in the results, if it does."""
    argument = call.arguments[name]
    if call.wrapper == "equinox":  # which returns constants beside the arrays
        leaves, structure = tree_util.tree_flatten(argument)
        arrays = [leaf if is_concrete(leaf) else None for leaf in leaves]
        argument = tree_util.tree_unflatten(structure, arrays)
    return tree_util.tree_structure(argument)


def _is_argument(
    call: CompilingCall, tree: _ResultTree, structure: PyTreeDef, position: int
) -> bool:
    """Returns whether a tree of the results is an argument of these shapes."""
    if call.wrapper == "flax":
        # NNX gives back the arrays of all arguments, in structures of its own.
        return tree.place == (position,)
    # A single leaf of a shape may be anything's.
    is_in_place = tree.place in ((), (position,))
    return tree.structure == structure and (structure.num_leaves > 1 or is_in_place)


def _whole_result(call: CompilingCall) -> _ResultTree:
    """Returns what the user's function gives back, without what a wrapper adds."""
    children = call.out_tree.children()
    if call.wrapper == "flax":
        return _ResultTree(children[0], 0, ())
    if call.wrapper == "equinox":
        return _ResultTree(children[1], children[0].num_leaves, ())
    return _ResultTree(call.out_tree, 0, ())


def _trees_in(tree: _ResultTree) -> Iterator[_ResultTree]:
    yield tree
    start = tree.start
    for number, child in enumerate(tree.structure.children()):
        yield from _trees_in(_ResultTree(child, start, (*tree.place, number)))
        start += child.num_leaves


def _place_in_nnx(path: KeyPath) -> list[tuple[bool, Any]]:
    """Returns what NNX sorts the arrays of an argument by: indices, then names."""
    keys = [key_value(key) for key in path]
    return [(isinstance(key, str), key) for key in keys]
