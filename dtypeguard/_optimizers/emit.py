"""The mini-step that emits: runs the inner update and writes it over the accumulator."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax, tree_util
from jax.core import Tracer, eval_jaxpr

from .._carry.split import SplitTree, eval_shape
from .._carry.tracing import make_jaxpr_with_aux
from .._leaves.compat import barrier
from .._leaves.dtypes import cast, kind, promoted
from .._leaves.key_path import key_paths
from .._leaves.types import Aval, Leaf, PyTree, State, Updates

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
    return tree_util.tree_map(_silent_update, shapes), sums, state


def _silent_update(shape: Leaf) -> Leaf:
    """Returns zeros for the shape of an update; what is no array as it is."""
    if isinstance(shape, jax.ShapeDtypeStruct):
        return _negative_zeros(jnp.zeros_like(shape))
    return shape


def _traced_emit_if(
    emits: jax.Array,
    step: _InnerStep,
    sums: PyTree,
    split_state: SplitTree,
) -> tuple[Updates, PyTree, State]:
    """Returns what `emit_if` returns, where it is known only at run time who emits.

    The branch writes each update over the sum at the same path: zeros in its place would be
    filled in every mini-step. Two selects outside, which XLA fuses with `p + u`, separate
    updates from sums again. If one update does not fit its sum, all get zeros of their own.
    """
    sum_arrays, sums_treedef = tree_util.tree_flatten(sums)

    def run(sum_arrays, state_arrays):
        sums = sums_treedef.unflatten(sum_arrays)
        state = split_state.merged(state_arrays)
        new_updates, new_state = step(sums, state)
        split_updates = SplitTree(new_updates)
        arrays = (split_updates.arrays, SplitTree(new_state).arrays)
        return arrays, split_updates.emptied()

    # What `run` closes over becomes an argument of the jaxpr, as `run_if` requires.
    jaxpr, split_updates = make_jaxpr_with_aux(run, sum_arrays, split_state.arrays)
    num_updates = len(split_updates.key_paths)
    update_avals = jaxpr.out_avals[:num_updates]
    has_same_paths = split_updates.key_paths == key_paths(sums)
    fits = has_same_paths and all(map(_fits_buffer, update_avals, jaxpr.in_avals))
    buffers = sum_arrays
    consts = (jaxpr.consts, [])
    if not fits:
        buffers = list(map(jnp.zeros_like, update_avals))
        consts = (jaxpr.consts, sum_arrays)

    def emit(consts, carry):
        jaxpr_consts, sum_arrays = consts
        buffers, state_arrays = carry
        if fits:
            sum_arrays = buffers
        outputs = eval_jaxpr(jaxpr.jaxpr, jaxpr_consts, *sum_arrays, *state_arrays)
        written = []
        for new_update, buffer in zip(outputs, buffers):
            written.append(cast(new_update, buffer.dtype))
        return written, outputs[num_updates:]

    carry = buffers, split_state.arrays
    written, state_arrays = run_if(emits, emit, consts, carry)
    if fits:
        sum_arrays = written

    # If the branch ran, the buffers hold updates, and the sums are zeros again.
    new_sums = []
    for array in sum_arrays:
        zeros = jnp.zeros_like(array)
        new_sums.append(jnp.where(emits, zeros, array))
    new_updates = []
    for array, aval in zip(written, update_avals):
        zeros = jnp.zeros_like(array)
        silent_update = _negative_zeros(zeros)
        new_update = jnp.where(emits, array, silent_update)
        new_updates.append(cast(new_update, aval.dtype))
    return (
        split_updates.merged(new_updates),
        sums_treedef.unflatten(new_sums),
        split_state.merged(state_arrays),
    )


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

        _, new_carry = lax.while_loop(is_first_turn, turn, (pred, carry))
        return new_carry

    def unchanged(consts, carry):
        return carry

    def conditional(pred, consts, carry):
        return lax.cond(pred, function, unchanged, consts, carry)

    run.defjvp(functools.partial(jax.jvp, conditional))
    return run(pred, consts, carry)
