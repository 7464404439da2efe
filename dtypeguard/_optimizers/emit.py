"""The mini-step that emits: runs the inner update and writes it over the accumulator."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax, tree_util
from jax.core import Tracer, eval_jaxpr

from .._carry.split import SplitTree, eval_shape
from .._carry.tracing import make_jaxpr_with_aux
from .._leaves.compat import barrier
from .._leaves.dtypes import cast, kind, promoted
from .._leaves.key_path import KeyPath, by_path, key_paths
from .._leaves.types import Aval, Jaxpr, PyTree, State, Updates

_InnerStep = Callable[[PyTree, State], tuple[Updates, State]]


def emit_if(
    emits: bool | jax.Array,
    step: _InnerStep,
    sums: PyTree,
    state: State,
) -> tuple[Updates, PyTree, State]:
    """Runs `step(sums, state)` if `emits`, in the memory of `sums` and the state.

    Leaves of the state that are no arrays stay: a traced branch cannot change them.
    """
    split_state = SplitTree(state)
    if isinstance(emits, Tracer):
        return _traced_emit_if(emits, step, sums, split_state)
    # Without `jit`, a conditional would be traced and compiled anew in every mini-step.
    if emits:
        new_updates, new_state = step(sums, state)
        new_arrays = SplitTree(new_state).arrays
        zeros = tree_util.tree_map(jnp.zeros_like, sums)
        new_state = split_state.merged(new_arrays)
        return new_updates, zeros, new_state

    def updates_of(trees):
        sums, state = trees
        new_updates, _ = step(sums, state)
        return new_updates

    shapes = eval_shape(updates_of, (sums, state))
    silent_updates = _silent_updates(shapes, sums)
    return silent_updates, sums, state


def _silent_updates(shapes: PyTree, sums: PyTree) -> Updates:
    """Returns zeros for updates, on the devices of the sums at their paths."""
    sums_by_path = by_path(sums)

    def zeros(path, shape):
        if not isinstance(shape, jax.ShapeDtypeStruct):
            return shape
        like = sums_by_path.get(path, shape)
        # An update may have a sum at its path, but another shape.
        if like.shape != shape.shape:
            like = shape
        array = jnp.zeros_like(like, dtype=shape.dtype)
        return _negative_zeros(array)

    return tree_util.tree_map_with_path(zeros, shapes)


def _traced_emit_if(
    emits: jax.Array,
    step: _InnerStep,
    sums: PyTree,
    split_state: SplitTree,
) -> tuple[Updates, PyTree, State]:
    """Returns what `emit_if` returns, where it is known only at run time who emits.

    The branch writes each update over the sum at the same path: zeros in its place would be
    filled in every mini-step. Two selects outside, which XLA fuses with `p + u`, separate
    updates from sums again. An update that fits no sum gets zeros of its own.
    """
    sum_arrays, sums_treedef = tree_util.tree_flatten(sums)

    def run(sum_arrays, state_arrays):
        sums = sums_treedef.unflatten(sum_arrays)
        state = split_state.merged(state_arrays)
        new_updates, new_state = step(sums, state)
        split_updates = SplitTree(new_updates)
        new_state_arrays = SplitTree(new_state).arrays
        arrays = (split_updates.arrays, new_state_arrays)
        return arrays, split_updates.emptied()

    # What `run` closes over becomes an argument of the jaxpr, as `run_if` requires.
    jaxpr, split_updates = make_jaxpr_with_aux(run, sum_arrays, split_state.arrays)
    places = _sums_to_write_over(jaxpr, split_updates.key_paths, key_paths(sums))

    def emit(consts, carry):
        # Second come the updates that fit no sum: zeros, which the branch replaces.
        sum_arrays, _, state_arrays = carry
        outputs = eval_jaxpr(jaxpr.jaxpr, consts, *sum_arrays, *state_arrays)
        written = list(sum_arrays)
        separate_updates = []
        for new_update, place in zip(outputs, places):
            if place is None:
                separate_updates.append(new_update)
            else:
                written[place] = cast(new_update, written[place].dtype)
        num_updates = len(places)
        new_state_arrays = outputs[num_updates:]
        return written, separate_updates, new_state_arrays

    separate_updates = []
    for aval, place in zip(jaxpr.out_avals, places):
        if place is None:
            zeros = jnp.zeros_like(aval)
            separate_updates.append(_negative_zeros(zeros))
    carry = sum_arrays, separate_updates, split_state.arrays
    written, separate_updates, state_arrays = run_if(emits, emit, jaxpr.consts, carry)

    # If the branch ran, the arrays are updates, and the sums are zeros again.
    new_sums = []
    emitted = []
    for array in written:
        zeros = jnp.zeros_like(array)
        new_sums.append(jnp.where(emits, zeros, array))
        silent_update = _negative_zeros(zeros)
        emitted.append(jnp.where(emits, array, silent_update))
    new_updates = []
    for aval, place in zip(jaxpr.out_avals, places):
        if place is None:
            new_updates.append(separate_updates.pop(0))
        else:
            new_update = cast(emitted[place], aval.dtype)
            new_updates.append(new_update)
    return (
        split_updates.merged(new_updates),
        sums_treedef.unflatten(new_sums),
        split_state.merged(state_arrays),
    )


def _sums_to_write_over(
    jaxpr: Jaxpr,
    update_paths: Sequence[KeyPath],
    sum_paths: Sequence[KeyPath],
) -> list[int | None]:
    """Returns for each update the index of the sum at its path, None if it does not fit."""
    indices = range(len(sum_paths))
    index_of = dict(zip(sum_paths, indices))
    places = []
    for path, update in zip(update_paths, jaxpr.out_avals):
        place = index_of.get(path)
        if place is not None:
            buffer = jaxpr.in_avals[place]
            if not _fits_buffer(update, buffer):
                place = None
        places.append(place)
    return places


def _fits_buffer(update: Aval, buffer: Aval) -> bool:
    """Returns whether a buffer holds an update exactly, in its shape and layout."""
    # The selects that separate updates from sums are of one dtype.
    if kind(update.dtype) != kind(buffer.dtype):
        return False
    # A bfloat16 accumulator would round float32 updates.
    dtype = promoted(update.dtype, buffer.dtype)
    if dtype != buffer.dtype:
        return False
    widened = update.update(dtype=buffer.dtype, weak_type=False)
    return widened == buffer


def _negative_zeros(zeros: jax.Array) -> jax.Array:
    """Returns negative zeros, if the dtype has them.

    `p + -0.0` is `p`, even if `p` is -0.0: XLA drops the addition if it overwrites `p`.
    """
    if jnp.issubdtype(zeros.dtype, jnp.inexact):
        return -zeros
    return zeros


def run_if(
    pred: jax.Array,
    function: Callable[[PyTree, PyTree], PyTree],
    consts: PyTree,
    carry: PyTree,
) -> PyTree:
    """Runs `lax.cond(pred, function, ...)`, but copies nothing in either branch.

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
            carry = barrier(carry)
            new_carry = function(consts, carry)
            return jnp.zeros_like(pred), new_carry

        def is_first_turn(state):
            is_left, _ = state
            return is_left

        first_state = (pred, carry)
        _, new_carry = lax.while_loop(is_first_turn, turn, first_state)
        return new_carry

    def unchanged(consts, carry):
        return carry

    def conditional(pred, consts, carry):
        return lax.cond(pred, function, unchanged, consts, carry)

    derivative = functools.partial(jax.jvp, conditional)
    run.defjvp(derivative)
    return run(pred, consts, carry)
