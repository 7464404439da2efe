"""Arrays with an axis for the turns of a loop."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from .._leaves.types import Leaf
from .evaluate import of_mesh
from .nodes import Noted
from .primitives import is_key


def at_turn(array: Leaf, turn: Leaf) -> Leaf:
    """Returns the part of an array that is of one turn."""
    with of_mesh(array):
        return lax.dynamic_index_in_dim(array, turn, keepdims=False)


def notes_at_turn(notes: Noted, turn: Leaf) -> Noted:
    """Returns the part of all notes that is of one turn."""
    return {key: at_turn(array, turn) for key, array in notes.items()}


def stacked(rows: Sequence[Leaf]) -> Leaf:
    """Returns arrays of each turn as one."""
    first = rows[0]
    if _is_on_one_device(first) and not is_key(first):
        # On the host: XLA takes seconds to compile it for a thousand operands.
        return jnp.asarray(np.stack([np.asarray(row) for row in rows]))
    with of_mesh(first):
        return jnp.stack(list(rows))


def _is_on_one_device(array: Leaf) -> bool:
    # One of a trace has no values, and one over several devices keeps its sharding.
    if isinstance(array, Tracer) or len(array.sharding.device_set) > 1:
        return False
    return jax.typeof(array).sharding.mesh.empty


def joined_notes(turns: Sequence[Noted]) -> Noted:
    """Returns the notes of all turns of a loop.

    A branch that was not taken in one of them, or a loop that took fewer turns, has noted
    zeros.
    """
    joined: Noted = {}
    for notes in turns:
        for key in notes:
            if key not in joined:
                rows = [other_notes.get(key) for other_notes in turns]
                joined[key] = stacked(_filled(rows))
    return joined


def _filled(rows: Sequence[Leaf | None]) -> list[Leaf]:
    """Returns rows of one shape: what is missing is 0."""
    arrays = [row for row in rows if row is not None]
    shape = tuple(int(size) for size in np.max([x.shape for x in arrays], axis=0))
    # Notes of inner loops have as many rows as that turn had.
    zeros = jnp.zeros(shape, arrays[0].dtype)
    result: list[Leaf] = []
    for row in rows:
        if row is None:
            row = zeros
        # An inner loop that turned less has shorter notes.
        if row.shape != shape:
            missing = [size - length for size, length in zip(shape, row.shape)]
            row = jnp.pad(row, [(0, count) for count in missing])
        result.append(row)
    return result


def chosen_by_turn(is_on: Leaf, new: Sequence[Leaf], old: Sequence[Leaf]) -> list[Leaf]:
    """Returns the carry of a loop: new arrays where it goes on, old arrays elsewhere."""
    if not is_on.ndim:
        return list(new)
    # Under `vmap` each element of the batch ends at a turn of its own.
    chosen: list[Leaf] = []
    for new_array, old_array in zip(new, old):
        axes = range(is_on.ndim, new_array.ndim)
        condition = jnp.expand_dims(is_on, tuple(axes))
        chosen.append(jnp.where(condition, new_array, old_array))
    return chosen
