"""The mini-step that emits: the inner update, written over the accumulator."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import tree_util
from jax.core import Tracer, eval_jaxpr

from .._leaves.dtypes import cast, kind, promoted
from .run_if import run_if


def emit_if(
    emits: Any, step: Callable[[Any, Any], tuple[Any, Any]], sums: Any, state: Any
) -> tuple[Any, Any, Any]:
    """`step(sums, state)` where `emits`, in the memory that `sums` and the state have.

    Args:
        emits: a scalar bool. Where it is not traced, as without jit, there is no branch.
        step: gives the new updates and the new state, of the types of the old one.
        sums: what was accumulated, a tree of strongly typed arrays.
        state: any tree. Leaves that are no arrays stay as they are.

    Returns:
        The new updates, the accumulator and the new state: from a mini-step that does not
        emit zeros, `sums` and the state as it came in.
    """
    arrays, others = _split(state)
    other_updates = None

    def run(sums, arrays):
        nonlocal other_updates
        new_updates, new_state = step(sums, _join(arrays, others))
        new_updates, other_updates = _split(new_updates)
        return new_updates, _split(new_state)[0]

    if isinstance(emits, Tracer):
        new_updates, sums, arrays = _in_place(emits, run, sums, arrays)
    elif emits:
        new_updates, arrays = run(sums, arrays)
        sums = _zeros_of(sums)
    else:
        new_updates = _zeros_of(jax.eval_shape(run, sums, arrays)[0])
    return _join(new_updates, other_updates), sums, _join(arrays, others)


def _in_place(emits: Any, run: Callable[..., Any], sums: Any, arrays: Any) -> Any:
    """The same of arrays alone, in a branch that carries only what there is already.

    Zeros to stand in for updates would be memory that every mini-step fills. So the branch
    writes each update over the sum that it was made of, and two selections outside, which
    XLA fuses with `p + u`, tell what is in that buffer. An update that does not fit there
    (another dtype or shape, no sum of its name) has zeros of its own.
    """
    # Traced here, once; what it closes over becomes an argument, as `run_if` wants it.
    traced, (shapes, _) = jax.make_jaxpr(run, return_shape=True)(sums, arrays)
    shapes, updates_tree = tree_util.tree_flatten(shapes)
    buffers, sums_tree = tree_util.tree_flatten(sums)
    arrays, arrays_tree = tree_util.tree_flatten(arrays)
    over = _sums_to_write_over(traced, updates_tree, sums_tree)

    def turn(consts, carry):
        buffers, _, arrays = carry
        new = eval_jaxpr(traced.jaxpr, consts, *buffers, *arrays)
        new_updates, arrays = new[: len(over)], new[len(over) :]
        written = {i: u for u, i in zip(new_updates, over)}
        buffers = [cast(written.get(i, b), b.dtype) for i, b in enumerate(buffers)]
        return buffers, [u for u, i in zip(new_updates, over) if i is None], arrays

    own = [jnp.zeros_like(shape) for shape, i in zip(shapes, over) if i is None]
    buffers, own, arrays = run_if(emits, turn, traced.consts, (buffers, own, arrays))
    zeros, own = _zeros_of(buffers), iter(own)
    new_updates = [
        next(own)
        if i is None
        else cast(jnp.where(emits, buffers[i], zeros[i]), shape.dtype)
        for shape, i in zip(shapes, over)
    ]
    sums = [jnp.where(emits, zero, buffer) for zero, buffer in zip(zeros, buffers)]
    return (
        tree_util.tree_unflatten(updates_tree, new_updates),
        tree_util.tree_unflatten(sums_tree, sums),
        tree_util.tree_unflatten(arrays_tree, arrays),
    )


def _sums_to_write_over(traced: Any, updates_tree: Any, sums_tree: Any) -> list[Any]:
    """For each update the number of the sum of its path, if it fits there, or None."""
    number = {path: i for i, path in enumerate(_paths(sums_tree))}
    places = [number.get(path) for path in _paths(updates_tree)]
    return [
        i if i is not None and _fits(update, traced.in_avals[i]) else None
        for update, i in zip(traced.out_avals, places)
    ]


def _fits(update: Any, buffer: Any) -> bool:
    """Whether a buffer holds an update exactly, and is laid out as the update is."""
    if kind(update.dtype) != kind(buffer.dtype):
        return False
    holds = promoted(update.dtype, buffer.dtype) == buffer.dtype
    return holds and update.update(dtype=buffer.dtype, weak_type=False) == buffer


def _paths(treedef: Any) -> list[Any]:
    tree = tree_util.tree_unflatten(treedef, range(treedef.num_leaves))
    return [path for path, _ in tree_util.tree_flatten_with_path(tree)[0]]


def _split(tree: Any) -> tuple[Any, Any]:
    """The arrays of a tree and its other leaves, each with None where the other is."""
    is_array = lambda leaf: isinstance(leaf, jax.Array)
    arrays = tree_util.tree_map(lambda leaf: leaf if is_array(leaf) else None, tree)
    return arrays, tree_util.tree_map(lambda leaf: None if is_array(leaf) else leaf, tree)


def _join(arrays: Any, others: Any) -> Any:
    pick = lambda array, other: other if array is None else array
    return tree_util.tree_map(pick, arrays, others, is_leaf=lambda leaf: leaf is None)


def _zeros_of(tree: Any) -> Any:
    """Of what they are like, which may tell a sharding or an axis of shard_map."""
    return tree_util.tree_map(jnp.zeros_like, tree)
