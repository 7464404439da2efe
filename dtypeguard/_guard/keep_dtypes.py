"""Gives the state and the updates of an optimizer the dtypes with which they came in."""

from collections.abc import Callable

import jax
import numpy as np
import optax
from jax import tree_util

from .._carry.split import Snapshot
from .._leaves.dtypes import broadcasts, dtype_of, kind
from .._leaves.errors import DtypeDriftError
from .._leaves.key_path import by_path, key_paths
from .._leaves.leaf_change import tree_changes
from .._leaves.table import Table
from .._leaves.types import DType, Leaf, Params, PyTree, State, Updates
from .policy import Policy
from .settle import Output, Settled, report_drift, settle_carried, settle_leaves

_NEW_STATE = Output("state")
_NEW_UPDATES = Output("updates", is_carried=False)


def keep_dtypes(
    inner: optax.GradientTransformationExtraArgs,
    policy: Policy,
    warn: Callable[[str], None],
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation whose update gives back the dtypes it was given.

    Optax leaves that to each optimizer: https://github.com/google-deepmind/optax/issues/1207.
    """

    def update(updates, state, params=None, **extra_args):
        new_updates, new_state = inner.update(updates, state, params, **extra_args)
        recorded_state = Snapshot(state)
        # Comparing two structures is quick; a walk over both trees is not.
        if tree_util.tree_structure(new_state) != recorded_state.treedef:
            new_state = _keep_where_none(new_state, state, updates)
        settled_state = settle_carried(_NEW_STATE, new_state, recorded_state, policy)
        settled_updates = _settle_updates(new_updates, updates, params, policy)
        report_drift([settled_state, settled_updates], _NEW_STATE, policy, warn)
        return settled_updates.tree, settled_state.tree

    return optax.GradientTransformationExtraArgs(inner.init, update)


def _is_none(leaf: Leaf) -> bool:
    return leaf is None


def _keep_where_none(new_state: State, state: State, updates: Updates) -> State:
    """Returns the new state, with the old leaf where Optax left None.

    Since Optax 0.2.5, `optax.trace` leaves None in its state where a gradient is None.
    """

    def keep(new, old):
        if new is None:
            return old
        return new

    gradients = tree_util.tree_leaves(updates, is_leaf=_is_none)
    if not any(map(_is_none, gradients)):
        return new_state
    try:
        return tree_util.tree_map(keep, new_state, state, is_leaf=_is_none)
    except ValueError:
        return new_state  # the trees differ in more than None


def _settle_updates(
    new_updates: Updates, updates: Updates, params: Params, policy: Policy
) -> Settled:
    """Returns new updates in the dtypes of the params, or in `policy.updates_dtype`.

    `params + updates` cannot promote a param then. Without params, they come in the dtypes
    of the given updates.
    """
    # Params are optional in Optax: an update may be called without.
    has_params = bool(tree_util.tree_leaves(params))
    record = params if has_params else updates
    fallback = updates
    if policy.updates_dtype == "grads":
        record = updates if tree_util.tree_leaves(updates) else params
        fallback = params
    recorded = _leaves_at_paths_of(new_updates, record)
    # In the tree of the record, what is no array there has no dtype to keep.
    if tree_util.tree_structure(new_updates) != tree_util.tree_structure(record):
        fallback_leaves = _leaves_at_paths_of(new_updates, fallback)
        for i, leaf in enumerate(fallback_leaves):
            if dtype_of(recorded[i]) is None:
                recorded[i] = leaf
        if any(map(_is_none, recorded)):
            changes = tree_changes(
                "updates", record, new_updates, "return the tree of params"
            )
            table = Table("update changed the tree of its updates:", changes)
            raise DtypeDriftError(str(table), table.rows())
    gradients = _leaves_at_paths_of(new_updates, updates)
    for i, new in enumerate(tree_util.tree_leaves(new_updates)):
        recorded[i] = _record_of_update(
            new, recorded[i], gradients[i], policy.updates_dtype, has_params
        )
    return settle_leaves(_NEW_UPDATES, new_updates, recorded, policy)


def _record_of_update(
    new: Leaf, recorded: Leaf, gradient: Leaf, updates_dtype: DType, has_params: bool
) -> Leaf:
    """Returns a leaf of the type in which a new update has to come back."""
    names_dtype = updates_dtype not in (None, "params", "grads")
    try:
        # Most updates end here: an eager update pays for each leaf.
        is_alike = new.dtype == recorded.dtype and new.shape == recorded.shape
        if is_alike and not names_dtype:
            return recorded
    except AttributeError:
        pass  # of a Python number
    dtype = dtype_of(recorded)
    if dtype is None:
        return recorded
    if names_dtype and kind(dtype) == "float":
        recorded = jax.ShapeDtypeStruct(np.shape(recorded), updates_dtype)
    # An update may have another shape than its param if `params + updates` keeps the shape
    # of the param, or if it is a batch of per-example gradients, as it came in.
    shape = np.shape(new)
    if shape == np.shape(recorded):
        return recorded
    is_as_given = not has_params or shape == np.shape(gradient)
    if is_as_given or broadcasts(shape, np.shape(recorded)):
        return jax.ShapeDtypeStruct(shape, dtype_of(recorded))
    return recorded


def _leaves_at_paths_of(tree: PyTree, record: PyTree) -> list[Leaf]:
    """Returns for each leaf of a tree the one at its place in a record, or None."""
    leaves, treedef = tree_util.tree_flatten(record)
    if tree_util.tree_structure(tree) == treedef:
        return leaves
    # The trees may differ: `optax.masked` and Equinox leave None for leaves.
    recorded = by_path(record)
    return [recorded.get(path) for path in key_paths(tree)]
