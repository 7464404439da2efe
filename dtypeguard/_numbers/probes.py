"""What a run notes beside its results, and which decisions it follows.

A program decides by floating values: comparisons, orders, indices, signs. A run may note
its decisions, and another one may follow them.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._leaves.internals import ForeignNames
from .._leaves.types import Leaf
from .._program.jaxprs import Arrays, value_kind
from .._program.program import Node
from .arithmetic import Values, own_form
from .evaluate import of_mesh
from .primitives import COMPUTED, SELECTS, Noted, Results, is_integer

_VALUES = ForeignNames("eq ne lt le gt ge sign floor ceil round")

# What a note of a decision is of, in place of a result.
DECISION = "decision"

# Returns what is noted of an equation, of it, its operands and its results.
_Note = Callable[[Node, Values, Values], Noted]


@dataclasses.dataclass
class Probes:
    """Notes beside the results of a run, and decisions for it to follow.

    Attributes:
        note: returns what is noted of an equation; None if nothing is.
        followed: the decisions that the run follows; others it makes itself.
        changed: the number of an equation whose results that do not fit are others.
        noted: what the run has noted, and how often loops turned.
    """

    note: _Note | None = None
    followed: Noted = dataclasses.field(default_factory=Noted)
    changed: int | None = None
    noted: Noted = dataclasses.field(default_factory=Noted)

    def empty(self, followed: Noted) -> "Probes":
        """Returns the same probes with nothing noted yet."""
        return dataclasses.replace(self, followed=followed, noted={})

    def followed_at(self, node: Node) -> Leaf | None:
        """Returns the decision to follow at an equation."""
        return self.followed.get((node.number, DECISION))

    def followed_inside(self, node: Node) -> Noted:
        """Returns the decisions to follow inside of a loop or of branches."""
        first = node.inner[0].first
        numbers = range(first, node.number)
        followed = Noted()
        for key, note in self.followed.items():
            number, kind = key
            if kind == DECISION and number in numbers:
                followed[key] = note
        return followed

    def add_notes(self, node: Node, operands: Values, results: Values) -> None:
        """Adds what is noted of an equation."""
        if self.note is not None:
            notes = self.note(node, operands, results)
            self.noted.update(notes)


def note_decisions(node: Node, operands: Values, results: Values) -> Noted:
    """Returns what an equation has decided by floats."""
    if node.rule != COMPUTED:
        return {}
    # Integers are the same on both sides, and so is what they decide.
    kinds = [value_kind(var.aval) for var in node.eqn.invars]
    if "float" not in kinds:
        return {}
    key = (node.number, DECISION)
    if node.name in SELECTS:  # the last operand tells which of the first to take
        return {key: own_form(operands[-1])}
    place = _decided_place(node)
    if place is None:
        return {}
    return {key: results[place]}


def _decided_place(node: Node) -> int | None:
    """Returns the place of the result that is a decision."""
    if node.name in _VALUES:
        return 0
    indices = []
    for place, var in enumerate(node.eqn.outvars):
        if is_integer(var.aval):
            indices.append(place)
    if len(indices) != 1:
        return None
    return indices[0]


def results_following(node: Node, results: Arrays, decision: Leaf) -> Results:
    """Returns the results of an equation with another decision than its own."""
    following = list(results)
    place = _decided_place(node)
    if place is not None:
        dtype = results[place].dtype
        following[place] = decision.astype(dtype)
    return following


# Notes with an axis for the turns of a loop.


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
    return jax.tree.map(
        lambda rows, row: lax.dynamic_update_index_in_dim(rows, row, turn, 0),
        notes,
        turn_notes,
    )


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
