"""The leaves of a call that its own program gives back in another type."""

import dataclasses

import numpy as np
from jax import tree_util

from .._blame.why import Has, why
from .._leaves.dtypes import dtype_of
from .._leaves.key_path import KeyPath, tree_name
from .._leaves.leaf_type import LeafType, traced_type
from .._leaves.types import Leaf, PyTree, PyTreeDef
from .._program.graph import Graph
from .._source.origin import Why
from .call import WRAPPERS, CompilingCall


@dataclasses.dataclass(frozen=True)
class ReturnedLeaf:
    """A leaf of an argument that comes back in another type.

    Attributes:
        why: the lines behind that.
        item: the item of the result, a tuple, that holds it; None if it is no tuple.
    """

    why: Why
    item: int | None


# By the path of the argument, and the type in which it comes back.
ReturnedLeaves = dict[tuple[KeyPath, LeafType | None], ReturnedLeaf]


@dataclasses.dataclass(frozen=True)
class _ResultTree:
    """The results of a call, or an item of them.

    Attributes:
        structure: of the tree.
        outputs: of the program, which are its leaves.
        item: its number; None for all results.
    """

    structure: PyTreeDef
    outputs: list[int]
    item: int | None = None


def returned_leaves(
    call: CompilingCall, leaves: dict[KeyPath, Leaf], graph: Graph
) -> ReturnedLeaves:
    """Returns the leaves that come back in another type."""
    changed = {}
    remaining = _result_trees(call, graph)
    for position, (name, argument) in enumerate(call.arguments.items()):
        argument_leaves = {}
        for path, leaf in leaves.items():
            if tree_name(path) == name:
                argument_leaves[path] = leaf
        shapes = list(map(np.shape, argument_leaves.values()))
        for tree in remaining:
            result_shapes = [graph.avals[output].shape for output in tree.outputs]
            if shapes != result_shapes:
                continue
            if not _is_argument(tree, call, position, argument):
                continue
            # Gradients have the tree of the params, but are not what comes back.
            remaining.remove(tree)
            for (path, leaf), output in zip(argument_leaves.items(), tree.outputs):
                after = traced_type(graph.avals[output])
                if after != traced_type(leaf):
                    lines = _lines_of_change(graph, output, leaf)
                    changed[path, after] = ReturnedLeaf(lines, tree.item)
            break
    return changed


def _lines_of_change(graph: Graph, output: int, before: Leaf) -> Why:
    aval = graph.avals[output]
    attribute = "dtype"
    if dtype_of(before) == aval.dtype:
        attribute = "weak_type"
    return why(graph, output, Has(attribute, getattr(aval, attribute)))


def _result_trees(call: CompilingCall, graph: Graph) -> list[_ResultTree]:
    """Returns what the user's function gives back, and the items of that."""
    results = call.out_tree
    outputs = graph.outputs
    # The wrappers add trees of their own.
    if call.wrapper == "flax":
        results = results.children()[0]
    elif call.wrapper == "equinox":
        before, results, *_ = results.children()
        outputs = outputs[before.num_leaves :]
    trees = [_ResultTree(results, outputs[: results.num_leaves])]
    container, _ = results.node_data() or (None, None)
    # `guard_step` takes the number of an item, which a dict has not.
    is_numbered = container in (tuple, list) and call.wrapper != "flax"
    for number, child in enumerate(results.children()):
        item = number if is_numbered else None
        trees.append(_ResultTree(child, outputs[: child.num_leaves], item))
        outputs = outputs[child.num_leaves :]
    return trees


def _is_argument(
    tree: _ResultTree, call: CompilingCall, position: int, argument: PyTree
) -> bool:
    """Returns whether a tree of the results is an argument of these shapes."""
    structure = tree_util.tree_structure(argument)
    # The wrappers return structures of their own.
    if tree.structure != structure and call.wrapper not in WRAPPERS:
        return False
    # A single leaf of a shape may be anything's.
    return len(tree.outputs) > 1 or tree.item in (None, position)
