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
        outputs: of the program, from its first leaf on.
        item: its number; None for all results.
    """

    structure: PyTreeDef
    outputs: list[int]
    item: int | None = None


def returned_leaves(
    call: CompilingCall, leaves: dict[KeyPath, Leaf], graph: Graph
) -> dict[KeyPath, ReturnedLeaf]:
    """Returns the leaves that come back in another type, by the path of the argument."""
    changed = {}
    results, *items = _result_trees(call, graph)
    remaining = [results, *items]
    container, _ = results.structure.node_data() or (None, None)
    # `guard_step` takes the number of an item, which a dict has not.
    has_items = container in (tuple, list) and call.wrapper != "flax"
    for position, name in enumerate(call.arguments):
        paths = [path for path in leaves if tree_name(path) == name]
        if call.wrapper == "flax":
            paths.sort(key=_place_in_nnx)
        shapes = [np.shape(leaves[path]) for path in paths]
        for tree in remaining:
            outputs = tree.outputs[: len(paths)]
            result_shapes = [graph.avals[output].shape for output in outputs]
            if shapes == result_shapes and _is_argument(tree, call, position):
                break
        else:
            continue
        # Gradients have the tree of the params, but are not what comes back.
        remaining.remove(tree)
        for path, output in zip(paths, outputs):
            aval = graph.avals[output]
            before = type_in_program(leaves[path])
            after = type_in_program(aval)
            if before != after:
                attribute = "weak_type" if before.dtype == after.dtype else "dtype"
                lines = why(graph, output, Has(attribute, getattr(aval, attribute)))
                item = tree.item if has_items else None
                changed[path] = ReturnedLeaf(after, lines, item)
    return changed


def _result_trees(call: CompilingCall, graph: Graph) -> Iterator[_ResultTree]:
    """Yields what the user's function gives back, and the items of that."""
    results = call.out_tree
    outputs = graph.outputs
    # The wrappers add trees of their own.
    if call.wrapper == "flax":
        results = results.children()[0]
    elif call.wrapper == "equinox":
        before, results, *_ = results.children()
        outputs = outputs[before.num_leaves :]
    yield _ResultTree(results, outputs)
    for item, child in enumerate(results.children()):
        yield _ResultTree(child, outputs, item)
        outputs = outputs[child.num_leaves :]


def _is_argument(tree: _ResultTree, call: CompilingCall, position: int) -> bool:
    """Returns whether a tree of the results is an argument of these shapes."""
    if call.wrapper == "flax":
        # NNX gives back the arrays of all arguments, in structures of its own.
        return tree.item == position
    argument = list(call.arguments.values())[position]
    if call.wrapper == "equinox":  # which returns constants beside the arrays
        argument = tree_util.tree_map(_array_or_none, argument)
    # A single leaf of a shape may be anything's.
    is_in_place = tree.item in (None, position)
    has_many = tree.structure.num_leaves > 1
    return tree.structure == tree_util.tree_structure(argument) and (
        has_many or is_in_place
    )


def _array_or_none(leaf: Leaf) -> Leaf | None:
    return leaf if is_concrete(leaf) else None


def _place_in_nnx(path: KeyPath) -> list[tuple[bool, Any]]:
    """Returns what NNX sorts the arrays of an argument by: indices, then names."""
    keys = [key_value(key) for key in path]
    return [(isinstance(key, str), key) for key in keys]
