"""Sequence[Leaf] with an axis for the turns of a loop."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._leaves.types import Leaf
from .evaluate import of_mesh


def at_turn(notes: Any, turn: Leaf) -> Any:
    """Returns the part of all notes that is of one turn."""

    def row(rows):
        with of_mesh(rows):
            return lax.dynamic_index_in_dim(rows, turn, keepdims=False)

    return jax.tree.map(row, notes)


def zeros_like(shapes: Any, *room: int) -> Any:
    """Returns notes of zeros, with room for so many turns."""

    def zeros(note):
        shape = (*room, *note.shape)
        return jnp.zeros(shape, note.dtype)

    return jax.tree.map(zeros, shapes)


def put_at_turn(notes: Any, turn_notes: Any, turn: Leaf) -> Any:
    """Returns notes with those of one turn."""

    def put(rows, row):
        return lax.dynamic_update_index_in_dim(rows, row, turn, 0)

    return jax.tree.map(put, notes, turn_notes)


def chosen_by_turn(is_on: Leaf, new: Sequence[Leaf], old: Sequence[Leaf]) -> list[Leaf]:
    """Returns the carry of a loop: new arrays where it goes on, old arrays elsewhere."""
    if not is_on.ndim:
        return list(new)
    # Under `vmap` each element of the batch ends at a turn of its own.
    chosen = []
    for new_array, old_array in zip(new, old):
        inner_axes = tuple(range(is_on.ndim, new_array.ndim))
        condition = jnp.expand_dims(is_on, inner_axes)
        array = jnp.where(condition, new_array, old_array)
        chosen.append(array)
    return chosen
