"""The mini-step that emits: runs the inner update and writes it over the accumulator."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax, tree_util
from jax.core import Tracer, eval_jaxpr

from .._carry.split import SplitTree
from .._leaves.compat import barrier
from .._leaves.dtypes import cast, kind, promoted
from .._leaves.types import Aval, Jaxpr, PyTree, State, Updates


def emit_if(
    emits: bool | jax.Array,
    step: Callable[[PyTree, State], tuple[Updates, State]],
    sums: PyTree,
    state: State,
) -> tuple[Updates, PyTree, State]:
    """Runs `step(sums, state)` if `emits`, in the memory of `sums` and the state."""
    split_state, split_sums = SplitTree(state), SplitTree(sums)
    sums, arrays = split_sums.arrays, split_state.arrays
    split_updates = SplitTree(())  # until `run` has been traced

    def run(sums, arrays):
        nonlocal split_updates
        outputs = step(split_sums.merged(sums), split_state.merged(arrays))
        new_updates, new_state = map(SplitTree, outputs)
        split_updates = new_updates.emptied()
        return new_updates.arrays, new_state.arrays

    if isinstance(emits, Tracer):
        # Traces `run` once. What it closes over becomes an argument, as `run_if` requires.
        traced, (shapes, _) = jax.make_jaxpr(run, return_shape=True)(sums, arrays)
        over = _sums_to_write_over(traced, split_updates.paths, split_sums.paths)
        new_updates, sums, arrays = _in_place(emits, traced, shapes, over, sums, arrays)
    elif emits:
        new_updates, arrays = run(sums, arrays)
        sums = _zeros_of(sums)
    else:
        shapes, _ = jax.eval_shape(run, sums, arrays)
        near = dict(zip(split_sums.paths, sums))
        beside = lambda new, acc: acc if getattr(acc, "shape", None) == new.shape else new
        pairs = zip(shapes, map(near.get, split_updates.paths))
        zeros = [jnp.zeros_like(beside(*pair), dtype=pair[0].dtype) for pair in pairs]
        new_updates = _negative(zeros)  # on the devices of the sums
    parts = split_updates, split_sums, split_state
    new = new_updates, sums, arrays
    return tuple(part.merged(leaves) for part, leaves in zip(parts, new))


def _in_place(
    emits: jax.Array,
    traced: Jaxpr,
    shapes: Sequence[Aval],
    over: Sequence[int | None],
    buffers: Sequence[jax.Array],
    arrays: Sequence[jax.Array],
) -> tuple[Sequence[jax.Array], Sequence[jax.Array], Sequence[jax.Array]]:
    """`emit_if` for lists of arrays, in a branch that carries no new buffers.

    The branch writes each update over the sum at the same path: zeros in its place would be
    filled in every mini-step. Two selects outside, which XLA fuses with `p + u`, separate
    updates from sums again. An update that does not fit gets zeros of its own.
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
    traced: Jaxpr, update_paths: Sequence[str], sum_paths: Sequence[str]
) -> list[int | None]:
    """For each update the index of the sum at its path, or None if it does not fit."""
    index = {path: i for i, path in enumerate(sum_paths)}

    def fits(update: Aval, i: int | None) -> bool:  # exactly, in its shape and layout
        if i is None or kind(update.dtype) != kind(traced.in_avals[i].dtype):
            return False
        buffer = traced.in_avals[i]
        holds = promoted(update.dtype, buffer.dtype) == buffer.dtype
        return holds and update.update(dtype=buffer.dtype, weak_type=False) == buffer

    places = zip(traced.out_avals, map(index.get, update_paths))
    return [i if fits(update, i) else None for update, i in places]


def _zeros_of(tree: PyTree) -> PyTree:
    """Zeros made from the leaves, so that they have their shardings and shard_map axes."""
    return tree_util.tree_map(jnp.zeros_like, tree)


def _negative(zeros: PyTree) -> PyTree:
    """Negative zeros, for dtypes that have them.

    `p + -0.0` is `p`, even if `p` is -0.0: XLA drops the addition if it overwrites `p`.
    """
    is_signed = lambda zero: jnp.issubdtype(zero.dtype, jnp.inexact)
    return tree_util.tree_map(lambda zero: -zero if is_signed(zero) else zero, zeros)


_Function = Callable[[PyTree, PyTree], PyTree]


def run_if(pred: jax.Array, function: _Function, consts: PyTree, carry: PyTree) -> PyTree:
    """Like `lax.cond(pred, function, ...)`, but copies nothing in either branch.

    XLA (of JAX 0.10) gives the results of a conditional their own buffers, and fills them
    in the other branch too; it updates the carry of a loop in place. So this runs a
    `lax.while_loop` of at most one turn, and differentiates `lax.cond`.
    """

    @jax.custom_jvp
    def run(pred, consts, carry):
        # Lion's update and its momentum each read what the other overwrites. With the
        # barrier, XLA (of JAX 0.10) computes the update first, as written, and copies only
        # the sums; without it, the momentum comes first and is copied too.
        def turn(state):
            _, carry = state
            return jnp.zeros_like(pred), function(consts, barrier(carry, derivative=False))

        return lax.while_loop(lambda state: state[0], turn, (pred, carry))[1]

    def conditional(pred, consts, carry):
        turn = lambda carry: function(consts, carry)
        return lax.cond(pred, turn, lambda carry: carry, carry)

    run.defjvp(functools.partial(jax.jvp, conditional))
    return run(pred, consts, carry)
