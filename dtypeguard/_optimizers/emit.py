"""The mini-step that emits: the inner update, written over the accumulator."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import tree_util
from jax.core import Tracer, eval_jaxpr

from .._leaves.dtypes import cast, kind, promoted
from .._leaves.types import PyTree, State
from .run_if import run_if


def emit_if(
    emits: Any, step: Callable[[Any, Any], tuple[Any, Any]], sums: PyTree, state: State
) -> tuple[Any, Any, Any]:
    """`step(sums, state)` where `emits`, in the memory that `sums` and the state have.

    Args:
        emits: a scalar bool. Where it is not traced, as without jit, there is no branch.
        step: gives the new updates and the new state, of the types of the old one.
        sums: what was accumulated, a tree of strongly typed arrays.
        state: any tree. Leaves that are no arrays stay as they are.

    Returns:
        The new updates, the accumulator and the new state. Where it does not emit these
        are negative zeros, `sums`, and the state as it came in.
    """
    arrays, state_rest = _split(state)
    sums, sums_rest = _split(sums)
    updates_rest: Any = None  # known once `run` is traced

    def run(sums, arrays):
        nonlocal updates_rest
        new_updates, new_state = step(sums_rest.join(sums), state_rest.join(arrays))
        new_updates, updates_rest = _split(new_updates)
        return new_updates, _split(new_state)[0]

    if isinstance(emits, Tracer):
        # Traced here, once; what it closes over becomes an argument, as `run_if` wants it.
        traced, (shapes, _) = jax.make_jaxpr(run, return_shape=True)(sums, arrays)
        over = _sums_to_write_over(traced, updates_rest.paths, sums_rest.paths)
        new_updates, sums, arrays = _in_place(emits, traced, shapes, over, sums, arrays)
    elif emits:
        new_updates, arrays = run(sums, arrays)
        sums = _zeros_of(sums)
    else:
        new_updates = _negative(_zeros_of(jax.eval_shape(run, sums, arrays)[0]))
    return updates_rest.join(new_updates), sums_rest.join(sums), state_rest.join(arrays)


def _in_place(
    emits: Any, traced: Any, shapes: Any, over: list[Any], buffers: Any, arrays: Any
) -> Any:
    """The same of lists of arrays, in a branch that carries only what there is already.

    Zeros to stand in for updates would be memory that every mini-step fills. So the branch
    writes each update over the sum that it was made of, and two selections outside, which
    XLA fuses with `p + u`, tell what is in that buffer. An update that does not fit there
    (another dtype or shape, no sum of its name) has zeros of its own.
    """

    def turn(consts, carry):
        buffers, _, arrays = carry
        new = eval_jaxpr(traced.jaxpr, consts, *buffers, *arrays)
        new_updates, arrays = new[: len(over)], new[len(over) :]
        written = {i: u for u, i in zip(new_updates, over)}
        buffers = [cast(written.get(i, b), b.dtype) for i, b in enumerate(buffers)]
        return buffers, [u for u, i in zip(new_updates, over) if i is None], arrays

    own = _negative(_zeros_of([s for s, i in zip(shapes, over) if i is None]))
    buffers, own, arrays = run_if(emits, turn, traced.consts, (buffers, own, arrays))
    zeros, own = _zeros_of(buffers), iter(own)
    select = functools.partial(tree_util.tree_map, functools.partial(jnp.where, emits))
    sums, emitted = select(zeros, buffers), select(buffers, _negative(zeros))
    new_updates = [
        next(own) if i is None else cast(emitted[i], shape.dtype)
        for shape, i in zip(shapes, over)
    ]
    return new_updates, sums, arrays


def _sums_to_write_over(
    traced: Any, paths_of_updates: Sequence[Any], paths_of_sums: Sequence[Any]
) -> list[Any]:
    """For each update the number of the sum of its path, if it fits there, or None."""
    number = {path: i for i, path in enumerate(paths_of_sums)}
    places = [number.get(path) for path in paths_of_updates]
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


class _Rest(NamedTuple):
    """What a tree is besides its arrays.

    A node is rebuilt around arrays or what stood there, never around None or a number: a
    dataclass may look at the shape of what it is made of.
    """

    leaves: tuple[Any, ...]  # None where an array stands
    places: tuple[int, ...]  # of the arrays
    paths: tuple[Any, ...]
    treedef: Any

    def join(self, arrays: Sequence[Any]) -> Any:
        """The tree with these arrays."""
        leaves = list(self.leaves)
        for i, array in zip(self.places, arrays):
            leaves[i] = array
        return tree_util.tree_unflatten(self.treedef, leaves)


def _split(tree: PyTree) -> tuple[list[Any], _Rest]:
    """The arrays of a tree, and the rest."""
    pairs, treedef = tree_util.tree_flatten_with_path(tree)
    places = tuple(i for i, (_, x) in enumerate(pairs) if isinstance(x, jax.Array))
    leaves = tuple(None if isinstance(x, jax.Array) else x for _, x in pairs)
    rest = _Rest(leaves, places, tuple(pairs[i][0] for i in places), treedef)
    return [pairs[i][1] for i in places], rest


def _zeros_of(tree: PyTree) -> Any:
    """Of what they are like, which may tell a sharding or an axis of shard_map."""
    return tree_util.tree_map(jnp.zeros_like, tree)


def _negative(zeros: PyTree) -> Any:
    """Negative zeros where there are such.

    `p + -0.0` is `p` bit for bit: written over `p` in float32, the kernel for it does
    nothing. `p + 0.0` makes 0.0 of a -0.0, so that every param is read and written.
    """
    is_signed = lambda zero: jnp.issubdtype(zero.dtype, jnp.inexact)
    return tree_util.tree_map(lambda zero: -zero if is_signed(zero) else zero, zeros)
