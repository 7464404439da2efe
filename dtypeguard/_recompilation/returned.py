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
    """The results of a call, or an item of them.

    Attributes:
        structure: of the tree.
        start: the number of its first leaf among all results.
        item: its number; None for all results.
    """

    structure: PyTreeDef
    start: int
    item: int | None = None


def returned_leaves(
    call: CompilingCall, leaves: dict[KeyPath, Leaf], graph: Graph
) -> dict[KeyPath, ReturnedLeaf]:
    """Returns the leaves that come back in another type, by the path of the argument."""
    changed = {}
    remaining = list(_result_trees(call))
    container, _ = remaining[0].structure.node_data() or (None, None)
    # `guard_step` takes the number of an item, which a dict has not.
    has_items = container in (tuple, list) and call.wrapper != "flax"
    for position, name in enumerate(call.arguments):
        paths = [path for path in leaves if tree_name(path) == name]
        if call.wrapper == "flax":
            paths.sort(key=_place_in_nnx)
        shapes = [np.shape(leaves[path]) for path in paths]
        structure = _structure_in_results(call, name)
        for tree in remaining:
            end = tree.start + len(paths)
            outputs = graph.outputs[tree.start : end]
            result_shapes = [graph.avals[output].shape for output in outputs]
            if shapes == result_shapes and _is_argument(call, tree, structure, position):
                break
        else:
            continue
        # Gradients have the tree of the params, but are not what comes back.
        remaining.remove(tree)
        item = tree.item if has_items else None
        for path, output in zip(paths, outputs):
            aval = graph.avals[output]
            before = type_in_program(leaves[path])
            after = type_in_program(aval)
            if before != after:
                attribute = "weak_type" if before.dtype == after.dtype else "dtype"
                matches = Has(attribute, getattr(aval, attribute))
                lines = why(graph, output, matches)
                changed[path] = ReturnedLeaf(after, lines, item)
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
        return tree.item == position
    # A single leaf of a shape may be anything's.
    is_in_place = tree.item in (None, position)
    return tree.structure == structure and (structure.num_leaves > 1 or is_in_place)


def _result_trees(call: CompilingCall) -> Iterator[_ResultTree]:
    """Yields what the user's function gives back, and the items of that."""
    children = call.out_tree.children()
    start = 0
    results = call.out_tree
    # The wrappers add trees of their own.
    if call.wrapper == "flax":
        results = children[0]
    elif call.wrapper == "equinox":
        start = children[0].num_leaves
        results = children[1]
    yield _ResultTree(results, start)
    for item, child in enumerate(results.children()):
        yield _ResultTree(child, start, item)
        start += child.num_leaves


def _place_in_nnx(path: KeyPath) -> list[tuple[bool, Any]]:
    """Returns what NNX sorts the arrays of an argument by: indices, then names."""
    keys = [key_value(key) for key in path]
    return [(isinstance(key, str), key) for key in keys]
