"""Casts what a function returned to the types it was given, or reports why it cannot."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax import tree_util

from .._carry.modules import put_contents
from .._carry.split import ObjectSnapshot, Snapshot
from .._leaves.cast_text import lost, return_as, rounding_sentence
from .._leaves.casts import Casts
from .._leaves.dtypes import (
    cast,
    dtype_of,
    fits,
    is_available,
    is_weak,
    kind,
    promoted_weakly,
    wraps,
)
from .._leaves.errors import DtypeDriftError, more
from .._leaves.key_path import key_paths
from .._leaves.leaf_change import LeafChange, tree_changes
from .._leaves.leaf_type import LeafType, leaf_type, type_or_class
from .._leaves.table import Table, count
from .._leaves.types import (
    DType,
    Leaf,
    NNXObject,
    PyTree,
    PyTreeDef,
)
from .policy import Policy, changes_dtypes, changes_precision


class Output(NamedTuple):
    """One of the things a function returns, and how messages describe it."""

    name: str  # a prefix of the paths of its leaves
    function: str = "update"  # which returned it
    wrapper: str = "guard"  # which casts it
    # Whether the caller passes it in again, as a state or a carry. Then a weak type is a
    # drift, and a leaf that is not an array has to stay what it is. Updates are not
    # carried: the caller adds them to the params, which are their record.
    is_carried: bool = True
    # Whether a weakly typed leaf takes its type from what comes back. A user may begin a
    # loop with 0.0 and leave the dtype to the step. `init` chooses the types of a state.
    starts_weak: bool = False

    @property
    def page(self) -> str:
        """The line of a message that points to the docs."""
        if self.wrapper == "guard":
            return more("guard-an-optimizer")
        return more("guard-a-step")


class Settled(NamedTuple):
    """A tree with its leaves cast to their record, and the changes to report."""

    tree: PyTree
    refused: list[LeafChange]  # that no allowed cast brings back
    drifted: list[LeafChange]  # that a cast brought back


def settle_carried(part: Output, tree: PyTree, record: Snapshot, policy: Policy) -> Settled:
    """Returns a carry in the types with which it came in, each array strongly typed."""
    if tree_util.tree_structure(tree) != record.treedef:
        before = record.copy()
        if _structure_of_data(tree) != _structure_of_data(before):
            remedy = "return the tree that came in"
            changes = tree_changes(part.name, before, tree, remedy)
            table = Table(f"{part.function} changed the tree of its {part.name}:", changes)
            raise DtypeDriftError(f"{table}{part.page}", table.rows())
        tree = tree_util.tree_unflatten(record.treedef, tree_util.tree_leaves(tree))
    return settle_leaves(part, tree, record.leaves, policy, record.constant_positions)


def settle_object(
    part: Output, object_snapshot: ObjectSnapshot, node: NNXObject, policy: Policy
) -> Settled:
    """Casts in place the Variables of an NNX object to the types they had before the step.

    Args:
        part: how messages describe the object.
        object_snapshot: the object that came in, with its contents of before.
        node: the object that came back for it, which may be the same.
        policy: the policy of the guard.
    """
    before, after = object_snapshot.pairs(node)
    settled = settle_carried(part, after, before, policy)
    put_contents(node, settled.tree.values)
    return settled._replace(tree=node)


def report_drift(
    settled: Sequence[Settled], part: Output, policy: Policy, warn: Callable[[str], None]
) -> None:
    """Raises for refused leaves, and reports drifted ones as the policy asks."""
    refused = []
    drifted = []
    for tree in settled:
        refused.extend(tree.refused)
        drifted.extend(tree.drifted)
    if refused:
        headline = f"{part.function} returned {count(refused)} that cannot be brought back:"
        table = Table(headline, refused)
        castable = [change for change in refused if change.castable]
        message = _with_loss(table, castable)
        if castable:
            message += (
                "\nSafe casts stay within float, complex or int, or go between bool and "
                f"int. To cast between all of them: {part.wrapper}(..., "
                'policy=dtypeguard.Policy(casting="unsafe")).'
            )
        raise DtypeDriftError(message + part.page, table.rows())
    if drifted and policy.on_drift != "cast":
        headline = f"{part.function} changed the dtype of {count(drifted)}:"
        table = Table(headline, drifted)
        message = _with_loss(table, drifted)
        if policy.on_drift == "error":
            message += (
                f"\nTo have them cast back: {part.wrapper}(..., "
                'policy=dtypeguard.Policy(on_drift="cast")).'
            )
            raise DtypeDriftError(message, table.rows())
        warn(message)


def _with_loss(table: Table, casts: Sequence[LeafChange]) -> str:
    """Returns the text of a table, and below it what casts to the old dtypes lose."""
    types = [change.before for change in casts]
    loss = rounding_sentence(x.dtype for x in types if isinstance(x, LeafType))
    if loss:
        return f"{table}\n{loss}"
    return str(table)


def settle_leaves(
    part: Output,
    tree: PyTree,
    recorded_leaves: Sequence[Leaf],
    policy: Policy,
    constant_positions: Collection[int] = (),
) -> Settled:
    """Keeps, casts or refuses each leaf that came out.

    All guards decide here, so that a state, updates and a carry follow the same rules.

    Args:
        part: what the tree is.
        tree: what came out.
        recorded_leaves: the leaves whose types those of `tree` get. They came in, or are
            the params of updates.
        policy: which casts are allowed, and which are the policy's own.
        constant_positions: which leaves are constants of an Equinox module. They may
            change.
    """
    leaves = tree_util.tree_leaves(tree)
    new_leaves = list(leaves)
    refused = []
    drifted = []
    # Where the policy chooses dtypes, a cast between floats is its own and no drift.
    policy_casts_floats = (
        changes_precision(policy) if part.is_carried else changes_dtypes(policy)
    )

    @functools.cache  # a walk over the tree, which most updates do not need
    def leaf_paths():
        return key_paths(tree, part.name)

    def make_change(i, remedy, castable=False):
        before = type_or_class(recorded_leaves[i])
        after = type_or_class(leaves[i])
        return LeafChange(leaf_paths()[i], before, after, remedy, castable)

    casts = Casts(part.wrapper, leaf_paths)
    is_changed = False
    for i, (leaf, recorded) in enumerate(zip(leaves, recorded_leaves)):
        if i in constant_positions or _has_recorded_type(part, leaf, recorded):
            continue
        dtype = _dtype_to_return(part, leaf, recorded)
        new_dtype = dtype_of(leaf)
        if _is_exempt(part, leaf, recorded, dtype):
            continue
        remedy = _remedy_for_no_cast(part, leaf, recorded, dtype)
        is_safe = dtype is None or new_dtype is None or fits(new_dtype, dtype)
        if remedy:
            refused.append(make_change(i, remedy))
        elif not is_safe and policy.casting != "unsafe":
            remedy = _remedy_for_other_kind(part, dtype, new_dtype)
            refused.append(make_change(i, remedy, castable=True))
        elif dtype is not None:
            are_floats = kind(dtype) == kind(new_dtype) == "float"
            is_asked_for = are_floats and policy_casts_floats
            has_weakened = part.is_carried and is_weak(leaf) and not is_weak(recorded)
            has_drifted = new_dtype != dtype and not is_asked_for
            if has_weakened or has_drifted:
                remedy = return_as(dtype, new_dtype)
                drifted.append(make_change(i, remedy))
            with casts.of(i, leaf):
                new_leaves[i] = cast(leaf, dtype)
            is_changed = is_changed or new_leaves[i] is not leaf
    # The same object, and no copy of it: a guarded step sees by `is` that nothing was cast.
    if is_changed:
        tree = Snapshot(tree).with_leaves(new_leaves)
    return Settled(tree, refused, drifted)


def _has_recorded_type(part: Output, leaf: Leaf, recorded: Leaf) -> bool:
    """Returns whether a leaf needs no cast.

    Most leaves end here. It is quick, because an eager update pays for each leaf.
    """
    try:
        if leaf.dtype != recorded.dtype:
            return False
        if leaf.shape != recorded.shape:
            return False
        if leaf.weak_type is False:
            return True
        may_be_weak = part.starts_weak or not part.is_carried
        return may_be_weak and recorded.weak_type
    except AttributeError:
        return False


def _is_exempt(part: Output, leaf: Leaf, recorded: Leaf, dtype: DType) -> bool:
    """Returns whether a leaf keeps the type in which it comes back."""
    if type(leaf) is type(recorded) is bool:
        return True  # a flag to branch on, which promotes nothing
    if part.starts_weak:
        are_of_numpy = isinstance(leaf, _NUMPY_TYPES) and isinstance(recorded, _NUMPY_TYPES)
        if are_of_numpy and leaf_type(leaf) == leaf_type(recorded):
            return True  # a step's own statistics on the host, which may have 64 bits
        has_chosen_type = dtype is not None and dtype == dtype_of(leaf)
        if has_chosen_type and is_weak(recorded):
            # JAX's loops trace their body again with this type, weak or not.
            return np.shape(leaf) == np.shape(recorded)
    if part.is_carried:
        return False
    # A function, a PRNG key or a float0: there is no dtype to keep.
    return dtype_of(leaf) is None or dtype is None


def _dtype_to_return(part: Output, leaf: Leaf, recorded: Leaf) -> DType:
    """Returns the dtype in which a leaf has to come back; None if it is to be no array."""
    if part.starts_weak and is_weak(recorded) and dtype_of(leaf) is not None:
        # JAX's loops trace their body again, with the type that comes back.
        return promoted_weakly(recorded, leaf)
    return dtype_of(recorded)


_NUMPY_TYPES = (np.ndarray, np.generic)
_CONTAINERS = (tuple, list, Mapping, type(None))


def _structure_of_data(tree: PyTree) -> PyTreeDef:
    """Returns the structure with all empty containers alike.

    An update may return () for an EmptyState.
    """

    def is_no_container(node):
        return not isinstance(node, _CONTAINERS)

    def is_empty(node):
        return not tree_util.tree_leaves(node, is_leaf=is_no_container)

    def replace_empty(node):
        if is_empty(node):
            return None
        return node

    replaced = tree_util.tree_map(replace_empty, tree, is_leaf=is_empty)
    return tree_util.tree_structure(replaced)


def _remedy_for_no_cast(part: Output, leaf: Leaf, recorded: Leaf, dtype: DType) -> str:
    """Returns the remedy for a leaf without a cast back; empty where there is a cast."""
    if dtype is None:
        # No array came in: a function or a PRNG key has to stay what it is.
        if leaf_type(leaf) == leaf_type(recorded):
            return ""
        return "return it as it came in"
    if dtype_of(leaf) is None:
        return f"return an array of jnp.{dtype}"
    if np.shape(leaf) != np.shape(recorded):
        return f"return it in shape {np.shape(recorded)}"
    if wraps(leaf, dtype):
        # Of a Python or NumPy number alone: the value of a traced one is not known.
        return "it does not fit: turn on jax_enable_x64, or return a smaller number"
    if not is_available(dtype):
        return f"call {part.function} within jax.enable_x64(True)"
    return ""


def _remedy_for_other_kind(part: Output, dtype: DType, new_dtype: DType) -> str:
    """Returns what to return instead of x, for a leaf that changed its kind."""
    remedy = return_as(dtype, new_dtype)
    if part.starts_weak:
        # The user wrote the first carry. It is wrong more often than what comes back.
        loss = lost(dtype, new_dtype)
        return f"begin with jnp.{new_dtype}{loss}, or {remedy}"
    return remedy
