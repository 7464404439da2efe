"""Checks that updates have the tree of their params, and fit them leaf by leaf."""

from collections.abc import Callable

from jax import tree_util

from .._leaves.arguments import is_subtree
from .._leaves.key_path import key_paths
from .._leaves.leaf_change import leaf_changes, tree_changes
from .._leaves.table import Table
from .._leaves.types import Leaf, Params, PyTreeDef, Updates


def is_missing(update: Leaf) -> bool:
    """Returns whether there is no update."""
    return update is None


def fitting_leaves(
    owner: str,
    params: Params,
    updates: Updates,
    remedy_of: Callable[[Leaf, Leaf], str],
    error_type: type[Exception] = ValueError,
) -> tuple[list[Leaf], list[Leaf], PyTreeDef]:
    """Returns the params and the updates in pairs, and the tree of the updates.

    A None among the updates may stand for a subtree of params.

    Args:
        owner: the function that was given them.
        params: a tree.
        updates: a tree of the same structure.
        remedy_of: tells what to write in place of an update for a param; empty if it fits.
        error_type: what is raised if one does not fit; a `ValueError` if the trees differ.
    """
    leaves, treedef = tree_util.tree_flatten(updates, is_leaf=is_missing)
    is_same_tree = True
    try:
        param_leaves = treedef.flatten_up_to(params)
    except ValueError:
        param_leaves = []
        is_same_tree = False
    for param, update in zip(param_leaves, leaves):
        # An update in place of a subtree passes for a prefix of the tree.
        if update is not None and is_subtree(param):
            is_same_tree = False
    if not is_same_tree:
        remedy = "give one for each param, or None"
        changes = tree_changes("updates", params, updates, remedy)
        headline = f"{owner} got updates in another tree than the params:"
        table = Table(headline, changes)
        raise ValueError(str(table))
    remedies = list(map(remedy_of, param_leaves, leaves))
    if any(remedies):
        # Paths are slow, and a message alone needs them.
        paths = key_paths(updates, "updates", is_missing)
        changes = leaf_changes(paths, param_leaves, leaves, remedies)
        headline = f"{owner} got updates that do not fit their params:"
        table = Table(headline, changes)
        raise error_type(str(table))
    return param_leaves, leaves, treedef
