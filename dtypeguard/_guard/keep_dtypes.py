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
from .._leaves.types import Leaf, Params, PyTree, State, Updates
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
        return old if new is None else new

    gradients = tree_util.tree_leaves(updates, is_leaf=_is_none)
    if not any(_is_none(gradient) for gradient in gradients):
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
    gradients = Snapshot(updates)
    recorded_params = Snapshot(params)
    if policy.updates_dtype == "grads":
        recorded = _leaves_for_updates(new_updates, gradients, recorded_params)
    else:
        recorded = _leaves_for_updates(new_updates, recorded_params, gradients)
    for i, new in enumerate(tree_util.tree_leaves(new_updates)):
        shape = np.shape(recorded[i])
        dtype = dtype_of(recorded[i])
        if policy.updates_dtype not in (None, "params", "grads") and kind(dtype) == "float":
            recorded[i] = jax.ShapeDtypeStruct(shape, policy.updates_dtype)
        # An update may have another shape than its param if `params + updates` keeps the
        # shape of the param, or if it is a batch of per-example gradients, as it came in.
        new_shape = np.shape(new)
        if (
            new_shape != shape
            and dtype is not None
            and (
                not recorded_params.leaves
                or broadcasts(new_shape, shape)
                or new_shape == np.shape(_leaves_at_paths_of(new_updates, gradients)[i])
            )
        ):
            recorded[i] = jax.ShapeDtypeStruct(new_shape, dtype_of(recorded[i]))
    return settle_leaves(_NEW_UPDATES, new_updates, recorded, policy)


def _leaves_for_updates(
    new_updates: Updates, record: Snapshot, other_record: Snapshot
) -> list[Leaf]:
    """Returns for each new update the leaf at its place in a record.

    Where that is no array, as a function among the params, the other record counts.
    """
    # Params are optional in Optax: an update may be called without.
    main_record = record if record.leaves else other_record
    recorded = _leaves_at_paths_of(new_updates, main_record)
    if tree_util.tree_structure(new_updates) == main_record.treedef:
        return recorded
    for i, alternative in enumerate(_leaves_at_paths_of(new_updates, other_record)):
        if dtype_of(recorded[i]) is None:
            recorded[i] = alternative
    if any(leaf is None for leaf in recorded):
        remedy = "return the tree of params"
        changes = tree_changes("updates", main_record.copy(), new_updates, remedy)
        table = Table("update changed the tree of its updates:", changes)
        raise DtypeDriftError(str(table), table.rows())
    return recorded


def _leaves_at_paths_of(tree: PyTree, record: Snapshot) -> list[Leaf]:
    """Returns for each leaf of a tree the one at its place in a record, or None."""
    if tree_util.tree_structure(tree) == record.treedef:
        return list(record.leaves)
    # The trees may differ: `optax.masked` and Equinox leave None for leaves.
    recorded = by_path(record.copy())
    return [recorded.get(path) for path in key_paths(tree)]
