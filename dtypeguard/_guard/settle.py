"""Casts what a function returned to the types it was given, or reports why it cannot."""

import dataclasses
import functools
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import tree_util

from .._carry.modules import put_contents
from .._carry.split import HeldTree, Snapshot
from .._leaves.dtypes import (
    Casts,
    broadcasts,
    cast,
    dtype_of,
    fits,
    is_weak,
    kind,
    promoted_weakly,
    wraps,
)
from .._leaves.errors import DtypeDriftError, more
from .._leaves.groups import short_table
from .._leaves.leaf_type import describe
from .._leaves.rows import Row, by_path, count, lost, paths, return_as, rounding, tree_rows
from .._leaves.types import DType, Leaf, NNXObject, PyTree, PyTreeDef, State, Updates
from .policy import Policy, changes_dtypes, changes_precision


class Output(NamedTuple):
    """One of the things a function returns, and how messages describe it."""

    name: str  # a prefix of the paths of its leaves
    function: str = "update"  # which returned it
    wrapper: str = "guard"  # which casts it
    # Whether the caller passes it in again. Then a weak type is a drift, and a leaf that is
    # not an array has to stay what it is. Otherwise the caller adds it to its record.
    is_carried: bool = True
    # Whether a weakly typed leaf takes its type from what comes back: `init` has chosen the
    # types of a state, the first carry of a loop may not have any.
    starts_weak: bool = False

    @property
    def page(self) -> str:
        """The line of a message that points to the docs."""
        return more("guard-an-optimizer" if self.wrapper == "guard" else "guard-a-step")


class Settled(NamedTuple):
    """A tree with its leaves cast to their record, and the rows to report."""

    tree: PyTree
    refused: list[Row]  # that no allowed cast brings back
    drifted: list[Row]  # that a cast brought back


_STATE = Output("state")
_UPDATES = Output("updates", is_carried=False)


def settle(
    outputs: tuple[Updates, State],
    given: tuple[Snapshot, Snapshot, Snapshot],
    policy: Policy,
    warn: Callable[[str], None],
) -> tuple[Updates, State]:
    """Casts new updates and state to the types of the given updates, state and params."""
    (new_updates, new_state), (updates, state, params) = outputs, given
    if tree_util.tree_structure(new_state) != state.treedef:
        new_state = _keep_where_none(new_state, state, updates)
    of_state = settle_carried(_STATE, new_state, state, policy)
    of_updates = settle_updates(new_updates, updates, params, policy)
    report_drift((of_state, of_updates), _STATE, policy, warn)
    return of_updates.tree, of_state.tree


def settle_carried(part: Output, tree: PyTree, given: Snapshot, policy: Policy) -> Settled:
    """Casts a carry to the types with which it came in, every array leaf strongly typed."""
    if tree_util.tree_structure(tree) != given.treedef:
        before = given.copy()
        if _structure_of_data(tree) != _structure_of_data(before):
            rows = tree_rows(part.name, before, tree, "return the tree that came in")
            headline = f"{part.function} changed the tree of its {part.name}:"
            raise DtypeDriftError(short_table(headline, rows) + part.page, rows)
        tree = tree_util.tree_unflatten(given.treedef, tree_util.tree_leaves(tree))
    same = lambda _, shape, old_shape: shape == old_shape
    return _settle(part, tree, given.leaves, same, policy, given.constants)


def settle_held(part: Output, held: HeldTree, node: NNXObject, policy: Policy) -> Settled:
    """Casts in place what an NNX object, or one returned for it, holds to what it held."""
    before, now = held.pairs(node)
    settled = settle_carried(part, now, before, policy)
    put_contents(node, settled.tree.values)
    return settled._replace(tree=node)


def report_drift(
    settled: Sequence[Settled], part: Output, policy: Policy, warn: Callable[[str], None]
) -> None:
    """Raises for leaves that were refused; reports those that drifted as a policy asks."""
    refused = [row for each in settled for row in each.refused]
    drifted = [row for each in settled for row in each.drifted]
    if refused:
        headline = f"{part.function} returned {count(refused)} that cannot be brought back:"
        message = _listed(headline, refused)
        if any(row.castable for row in refused):
            message += (
                "\nSafe casts stay within float, complex or int, or go between bool and "
                f"int. To cast between all of them: {part.wrapper}(..., "
                'policy=dtypeguard.Policy(casting="unsafe")).'
            )
        raise DtypeDriftError(message + part.page, refused)
    if drifted and policy.on_drift != "cast":
        headline = f"{part.function} changed the dtype of {count(drifted)}:"
        message = _listed(headline, drifted)
        if policy.on_drift == "error":
            raise DtypeDriftError(
                f"{message}\nTo have them cast back: {part.wrapper}(..., "
                'policy=dtypeguard.Policy(on_drift="cast")).',
                drifted,
            )
        warn(message)


def _listed(headline: str, rows: Sequence[Row]) -> str:
    """A headline and the rows below it, and what their casts lose."""
    rounds = rounding(row.before for row in rows if "astype" in row.remedy)
    return short_table(headline, rows) + (rounds and f"\n{rounds}")


def _settle(
    part: Output,
    tree: PyTree,
    recorded: list[Leaf],
    shape_fits: Callable[[int, tuple[int, ...], tuple[int, ...]], bool],
    policy: Policy,
    constants: Collection[int] = (),
) -> Settled:
    """Keeps, casts or refuses each leaf that came out. No other function does."""
    leaves = tree_util.tree_leaves(tree)
    settled, refused, drifted = {}, [], []
    names = functools.cache(lambda: paths(tree))
    casts = Casts(part.wrapper, part.name, names)
    may_be_weak = part.starts_weak or not part.is_carried

    def row(i: int, remedy: str, castable: bool = False) -> Row:
        before, after = describe(recorded[i]), describe(leaves[i])
        return Row(part.name + names()[i], before, after, remedy, castable)

    for i, (leaf, old) in enumerate(zip(leaves, recorded)):
        if _is_settled(leaf, old, may_be_weak):
            continue
        if i in constants or (type(leaf) is bool and type(old) is bool):
            continue  # a constant or a flag to branch on: it promotes nothing
        if part.starts_weak and _is_of_numpy(leaf, old):
            continue  # a step's own statistics on the host, which may have 64 bits
        dtype, new_dtype = dtype_of(old), dtype_of(leaf)
        if not part.is_carried and (dtype is None or new_dtype is None):
            continue  # functions, PRNG keys and float0 have no dtype to keep
        if part.starts_weak and is_weak(old) and new_dtype is not None:
            # JAX traces the body of its loop again, with the type that comes back.
            dtype = promoted_weakly(old, leaf)
            if dtype == new_dtype and np.shape(leaf) == np.shape(old):
                continue
        if dtype is None:
            if new_dtype is not None or not _has_same_type(leaf, old):
                refused.append(row(i, "return it as it came in"))
        elif new_dtype is None:
            refused.append(row(i, _no_array(leaf, dtype)))
        elif not shape_fits(i, np.shape(leaf), np.shape(old)):
            refused.append(row(i, f"return it in shape {np.shape(old)}"))
        elif not (fits(new_dtype, dtype) or policy.casting == "unsafe"):
            refused.append(row(i, _other_kind(part, dtype, new_dtype), castable=True))
        elif wraps(leaf, dtype):
            remedy = "it does not fit: turn on jax_enable_x64, or return a smaller number"
            refused.append(row(i, remedy))
        else:
            weakened = part.is_carried and is_weak(leaf) and not is_weak(old)
            # Where a policy chooses the dtypes of floats, a cast between them is its own.
            is_policys = changes_precision if part.is_carried else changes_dtypes
            are_floats = kind(dtype) == kind(new_dtype) == "float"
            is_asked = new_dtype == dtype or (are_floats and is_policys(policy))
            if weakened or not is_asked:
                drifted.append(row(i, _brought_back(dtype, new_dtype)))
            with casts.of(i, leaf):
                settled[i] = cast(leaf, dtype)
    if settled:
        leaves = [settled.get(i, leaf) for i, leaf in enumerate(leaves)]
        tree = Snapshot(tree).with_leaves(leaves)
    return Settled(tree, refused, drifted)


def _is_settled(leaf: Leaf, old: Leaf, may_be_weak: bool) -> bool:
    """Whether a leaf needs no cast. Quick, because eager updates pay for it once a leaf."""
    try:
        return (
            leaf.dtype == old.dtype
            and leaf.shape == old.shape
            and (leaf.weak_type is False or (may_be_weak and old.weak_type))
        )
    except AttributeError:
        return False


def _is_of_numpy(leaf: Leaf, old: Leaf) -> bool:
    """Whether both are NumPy arrays or scalars of one dtype and shape."""
    is_numpy = all(isinstance(x, (np.ndarray, np.generic)) for x in (leaf, old))
    return is_numpy and leaf.dtype == old.dtype and leaf.shape == old.shape


def _has_same_type(leaf: Leaf, old: Leaf) -> bool:
    """Whether both are PRNG keys of one type and shape, or neither has a dtype."""
    dtype, old_dtype = (getattr(x, "dtype", None) for x in (leaf, old))
    return dtype == old_dtype and (dtype is None or np.shape(leaf) == np.shape(old))


_CONTAINERS = (tuple, list, Mapping, type(None))


def _structure_of_data(tree: PyTree) -> PyTreeDef:
    """The structure with all empty containers alike: () may replace an EmptyState."""
    is_data = lambda node: not isinstance(node, _CONTAINERS)
    is_empty = lambda node: not tree_util.tree_leaves(node, is_leaf=is_data)
    alike = lambda node: None if is_empty(node) else node
    return tree_util.tree_structure(tree_util.tree_map(alike, tree, is_leaf=is_empty))


def _keep_where_none(new_state: State, state: Snapshot, updates: Snapshot) -> State:
    """The new state, with the old leaf where Optax left None for a gradient of None."""
    is_none = lambda leaf: leaf is None
    if not any(map(is_none, tree_util.tree_leaves(updates.copy(), is_leaf=is_none))):
        return new_state
    keep = lambda new, old: old if new is None else new
    try:
        return tree_util.tree_map(keep, new_state, state.copy(), is_leaf=is_none)
    except ValueError:  # the trees differ in more than None
        return new_state


def settle_updates(
    new_updates: Updates, updates: Snapshot, params: Snapshot, policy: Policy
) -> Settled:
    """Casts new updates to the types of the params, or as `policy.updates_dtype` says."""
    asked = policy.updates_dtype
    wanted, other = (updates, params) if asked == "grads" else (params, updates)
    recorded = _recorded(new_updates, wanted, other)
    if not (asked is None or isinstance(asked, str)):
        is_float = lambda leaf: kind(dtype_of(leaf)) == "float"
        like = lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), asked)
        recorded = [like(leaf) if is_float(leaf) else leaf for leaf in recorded]

    def adds(number, shape, old_shape):
        # p + u has to keep the shape of p. A batch of per-example gradients may stay one.
        return (
            not params.leaves
            or broadcasts(shape, old_shape)
            or shape == np.shape(_at_leaves(new_updates, updates)[number])
        )

    return _settle(_UPDATES, new_updates, recorded, adds, policy)


def _recorded(new_updates: Updates, wanted: Snapshot, other: Snapshot) -> list[Leaf]:
    """For each new update the leaf at its place in `wanted`, or else in `other`."""
    record = wanted if wanted.leaves else other
    if tree_util.tree_structure(new_updates) == record.treedef:
        return record.leaves
    pairs = zip(_at_leaves(new_updates, wanted), _at_leaves(new_updates, other))
    found = [second if dtype_of(first) is None else first for first, second in pairs]
    if any(leaf is None for leaf in found):
        rows = tree_rows("updates", record.copy(), new_updates, "return the tree of params")
        message = short_table("update changed the tree of its updates:", rows)
        raise DtypeDriftError(message, rows)
    return found


def _at_leaves(tree: PyTree, other: Snapshot) -> list[Leaf]:
    """For each leaf of a tree the one at its place in another tree, or None."""
    if tree_util.tree_structure(tree) == other.treedef:
        return other.leaves
    known = by_path(other.copy())
    return [known.get(path) for path in paths(tree)]


_NOT_RUN = {
    types.CoroutineType: "it is not awaited: write def in place of async def",
    types.GeneratorType: "it has not run: write return in place of yield",
}


def _no_array(leaf: object, dtype: DType) -> str:
    """What to write for a leaf that came back as no array."""
    if dataclasses.is_dataclass(type(leaf)):
        name = type(leaf).__name__
        return f"no tree to JAX: jax.tree_util.register_dataclass({name}) makes it one"
    return _NOT_RUN.get(type(leaf), f"return an array of jnp.{dtype}")


def _brought_back(dtype: DType, new_dtype: DType) -> str:
    """What to return from the update instead of x, for a leaf that a cast brings back."""
    if kind(dtype) == "bool" and kind(new_dtype) == "int":
        return "return x != 0; a bool holds no count: start from an int if it counts"
    return return_as(dtype, new_dtype)


def _other_kind(part: Output, dtype: DType, new_dtype: DType) -> str:
    """What to return from the update instead of x, for a leaf that changed its kind."""
    if not part.is_carried and kind(dtype) in ("bool", "int"):
        return "optimize eqx.filter(params, eqx.is_inexact_array) alone"
    # The user wrote the first carry. It is wrong more often than what comes back.
    begin = f"begin with jnp.{new_dtype}{lost(dtype, new_dtype)}, or "
    return begin * part.starts_weak + return_as(dtype, new_dtype)
