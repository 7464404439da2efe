"""Brings what came out back to the types of what went in, or says why it cannot."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import tree_util

from .._leaves.dtypes import broadcasts, cast, dtype_of, fits, is_weak, kind
from .._leaves.errors import DtypeDriftError
from .._leaves.rows import Row, by_path, count, describe, paths, table, tree_rows
from .policy import Policy


def settle(outputs: Any, inputs: Any, policy: Policy, warn: Callable[[str], None]) -> Any:
    """What an update returned, in the dtypes of what it was given.

    Args:
        outputs: the new updates and the new state.
        inputs: the updates, the state (of any provenance: its leaves are the record) and
            the params or None.
        policy: which casts are allowed and what is said about them.
        warn: is given the message where `policy.on_drift` is "warn".

    Returns:
        The new updates, in the dtypes of the params or else of the incoming updates, and
        the new state, every array leaf strongly typed and in its dtype in the state.

    Raises:
        DtypeDriftError: if a tree, a shape or a kind has changed, or a dtype where
            `policy.on_drift` is "error". Names every such leaf.
    """
    (new_updates, new_state), (updates, state, params) = outputs, inputs
    # A batch of per-example gradients may stay or shrink; else p + u keeps p's shape.
    came_in = lambda shape: shape in map(np.shape, tree_util.tree_leaves(updates))
    adds = lambda shape, p: params is None or broadcasts(shape, p) or came_in(shape)
    new_state, *of_state = _settle(
        "state", *_pair_state(new_state, state, updates), _same_shape, policy
    )
    new_updates, *of_updates = _settle(
        "updates",
        *_as_asked(new_updates, updates, params, policy),
        adds,
        policy,
        is_carried=False,
    )
    refused, drifted = (a + b for a, b in zip(of_state, of_updates))
    if policy.widens_updates:
        drifted = of_state[1]
    _tell(Author("guard", "update"), refused, drifted, policy, warn)
    return new_updates, new_state


class Author(NamedTuple):
    """Whose output is settled, and by whom: `update` by `guard`."""

    guard: str
    function: str


def settle_carry(
    author: Author,
    labels: tuple[str, ...],
    new: tuple[Any, ...],
    old: tuple[Any, ...],
    policy: Policy,
    warn: Callable[[str], None],
) -> tuple[Any, ...]:
    """What a step gave back of its carry, in the types of what it was given.

    Args:
        author: the step, and who guards it.
        labels: what each carry is called.
        new: what came out.
        old: what went in: strongly typed leaves are the record.
        policy: which casts are allowed and what is said about them.
        warn: is given the message where `policy.on_drift` is "warn".

    Raises:
        DtypeDriftError: as by `settle`.
    """
    settled, refused, drifted = [], [], []
    for label, tree, record in zip(labels, new, old):
        words = f"{author.function} changed the tree of {label}:"
        pair = _pair_trees(label, words, tree, record)
        tree, *rows = _settle(label, *pair, _same_shape, policy)
        settled.append(tree)
        refused += rows[0]
        drifted += rows[1]
    _tell(author, refused, drifted, policy, warn)
    return tuple(settled)


def _tell(
    author: Author,
    refused: list[Row],
    drifted: list[Row],
    policy: Policy,
    warn: Callable[[str], None],
) -> None:
    """Raises or warns about what could not be brought back, or was and should not be."""
    if refused:
        headline = (
            f"{author.function} returned {count(refused)} that cannot be brought back:"
        )
        unsafe = _UNSAFE.format(author.guard) if any(r.castable for r in refused) else ""
        raise DtypeDriftError(table(headline, refused) + unsafe)
    if drifted and policy.on_drift != "cast":
        headline = f"{author.function} changed the dtype of {count(drifted)}:"
        message = table(headline, drifted)
        if policy.on_drift == "error":
            raise DtypeDriftError(message + _CAST.format(author.guard))
        warn(message)


def _same_shape(shape: tuple[int, ...], old_shape: tuple[int, ...]) -> bool:
    return shape == old_shape


def _settle(
    where: str,
    tree: Any,
    recorded: list[Any],
    shape_fits: Callable[[tuple[int, ...], tuple[int, ...]], bool],
    policy: Policy,
    is_carried: bool = True,
) -> tuple[Any, list[Row], list[Row]]:
    """The one place where a leaf that came out is kept, cast or refused.

    Args:
        where: the name of the tree, which the paths in the rows go on from.
        tree: what came out.
        recorded: for each of its leaves the one that it is to be like.
        shape_fits: whether a shape may come out where one went in.
        policy: which casts are allowed.
        is_carried: whether it goes in again. Else it is to be added to something: it may
            stay weakly typed, and what has no dtype is nobody's business.
    """
    leaves, treedef = tree_util.tree_flatten(tree)
    settled, refused, drifted = {}, {}, {}
    for i, (leaf, old) in enumerate(zip(leaves, recorded)):
        if _is_settled(leaf, old, may_be_weak=not is_carried):
            continue
        dtype, new_dtype = dtype_of(old), dtype_of(leaf)
        if not is_carried and (dtype is None or new_dtype is None):
            continue  # functions, PRNG keys and float0 have no dtype to keep
        if dtype is None:
            if new_dtype is not None or not _has_same_type(leaf, old):
                refused[i] = ("return it as it came in",)
        elif new_dtype is None:
            refused[i] = (f"return an array of jnp.{dtype}",)
        elif not shape_fits(np.shape(leaf), np.shape(old)):
            refused[i] = (f"return it in shape {np.shape(old)}",)
        elif not (fits(new_dtype, dtype) or policy.casting == "unsafe"):
            refused[i] = (_other_kind(is_carried, dtype, new_dtype), True)
        else:
            weakened = is_carried and is_weak(leaf) and not is_weak(old)
            if new_dtype != dtype or weakened:
                drifted[i] = (f"return x.astype(jnp.{dtype})",)
            settled[i] = cast(leaf, dtype)
    if not (settled or refused):
        return tree, [], []

    def rows(remedies: dict[int, tuple[Any, ...]]) -> list[Row]:
        names = paths(tree) if remedies else []
        return [
            Row(where + names[i], describe(recorded[i]), describe(leaves[i]), *remedy)
            for i, remedy in remedies.items()
        ]

    brought_back = [settled.get(i, leaf) for i, leaf in enumerate(leaves)]
    return tree_util.tree_unflatten(treedef, brought_back), rows(refused), rows(drifted)


def _is_settled(leaf: Any, old: Any, may_be_weak: bool) -> bool:
    """Whether there is nothing to do: quick, since eager updates pay it for every leaf."""
    try:
        return (
            leaf.dtype == old.dtype
            and leaf.shape == old.shape
            and (leaf.weak_type is False or (may_be_weak and old.weak_type))
        )
    except AttributeError:
        return False


def _has_same_type(leaf: Any, old: Any) -> bool:
    """Whether both are PRNG keys of one type and shape, or neither is anything like it."""
    dtype, old_dtype = (getattr(x, "dtype", None) for x in (leaf, old))
    return dtype == old_dtype and (dtype is None or np.shape(leaf) == np.shape(old))


def _pair_state(new_state: Any, state: Any, updates: Any) -> tuple[Any, list[Any]]:
    """The new state and, for each of its leaves, the leaf that came in.

    For a gradient that is None optax leaves None in the state: that leaf of the state
    learns nothing and stays as it was.
    """
    if tree_util.tree_structure(new_state) != tree_util.tree_structure(state):
        new_state = _keep_where_none(new_state, state, updates)
    return _pair_trees("state", "update changed the tree of its state:", new_state, state)


def _pair_trees(where: str, headline: str, new: Any, old: Any) -> tuple[Any, list[Any]]:
    """A tree that came out, and the leaves of the one that went in."""
    recorded, treedef = tree_util.tree_flatten(old)
    if tree_util.tree_structure(new) != treedef:
        if _structure_of_leaves(new) != _structure_of_leaves(old):
            rows = tree_rows(where, old, new, "return the tree that came in")
            raise DtypeDriftError(table(headline, rows))
        new = tree_util.tree_unflatten(treedef, tree_util.tree_leaves(new))
    return new, recorded


def _structure_of_leaves(tree: Any) -> Any:
    """A structure in which nodes without leaves are one: () may go for an EmptyState."""
    is_empty = lambda node: not tree_util.tree_leaves(node)
    alike = lambda node: None if is_empty(node) else node
    return tree_util.tree_structure(tree_util.tree_map(alike, tree, is_leaf=is_empty))


def _keep_where_none(new_state: Any, state: Any, updates: Any) -> Any:
    is_none = lambda leaf: leaf is None
    if not any(map(is_none, tree_util.tree_leaves(updates, is_leaf=is_none))):
        return new_state
    keep = lambda new, old: old if new is None else new
    try:
        return tree_util.tree_map(keep, new_state, state, is_leaf=is_none)
    except ValueError:  # the trees differ in more than None
        return new_state


def _as_asked(new_updates: Any, updates: Any, params: Any, policy: Policy):
    """As `pair_updates`, with the dtypes of the record as `policy.updates_dtype` says."""
    asked = policy.updates_dtype
    if asked is None or isinstance(asked, str):
        return pair_updates(new_updates, updates, None if asked == "grads" else params)
    new_updates, recorded = pair_updates(new_updates, updates, params)
    is_float = lambda leaf: kind(dtype_of(leaf)) == "float"
    like = lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), asked)
    return new_updates, [like(leaf) if is_float(leaf) else leaf for leaf in recorded]


def pair_updates(new_updates: Any, updates: Any, params: Any) -> tuple[Any, list[Any]]:
    """The new updates and, for each of their leaves, its param or the incoming update.

    Leaves of `params` may be missing (None or `MaskedNode` stand there).
    """
    record = updates if params is None else params
    recorded, treedef = tree_util.tree_flatten(record)
    if tree_util.tree_structure(new_updates) == treedef:
        return new_updates, recorded
    known = by_path(updates)
    known |= {k: v for k, v in by_path(params).items() if dtype_of(v) is not None}
    new = by_path(new_updates)
    if not new.keys() <= known.keys():
        rows = tree_rows("updates", record, new_updates, "return the tree of params")
        raise DtypeDriftError(table("update changed the tree of its updates:", rows))
    return new_updates, [known[path] for path in new]


_CAST = '\nTo have them cast back: {}(..., policy=dtypeguard.Policy(on_drift="cast")).'
_UNSAFE = (
    "\nSafe casts stay within float, complex or int, or go between bool and int. To cast "
    'between all of them: {}(..., policy=dtypeguard.Policy(casting="unsafe")).'
)


def _other_kind(is_carried: bool, dtype: Any, new_dtype: Any) -> str:
    """What to write in the update instead, for a leaf named x."""
    kinds = kind(dtype), kind(new_dtype)
    if not is_carried and kinds[0] in ("bool", "int"):
        return "optimize eqx.filter(params, eqx.is_inexact_array) alone"
    if kinds == ("float", "complex"):
        return f"return jnp.real(x).astype(jnp.{dtype})"
    if kinds == ("int", "float"):
        return f"return jnp.round(x).astype(jnp.{dtype})"
    return f"return x.astype(jnp.{dtype})"
