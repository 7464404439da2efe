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
from .arithmetic import Values, wide_form
from .evaluate import of_mesh
from .integers import Watched, otherwise
from .primitives import SELECTS, Noted, Results, is_integer

_VALUES = ForeignNames("eq ne lt le gt ge sign floor ceil round")

# What a note of a decision is of, in place of a result.
DECISION = "decision"

# Returns what is noted of a result, of it and the operands.
_Note = Callable[[Leaf, Arrays], Leaf | None]


@dataclasses.dataclass
class Probes:
    """Notes beside the results of a run, and decisions for it to follow.

    Attributes:
        noted: gets what is noted; None if nothing is.
        note: returns what is noted of a result, of it and its operands. Without it the
            decisions are noted.
        followed: the decisions that the run follows; others it makes itself.
        watched: the equations of which more is noted than decisions.
        changed: the number of an equation whose results that do not fit are others.
    """

    noted: Noted | None = None
    note: _Note | None = None
    followed: Noted = dataclasses.field(default_factory=Noted)
    watched: Watched | None = None
    changed: int | None = None

    def empty(self, followed: Noted) -> "Probes":
        """Returns the same probes with nothing noted yet."""
        noted = None
        if self.noted is not None:
            noted = {}
        return dataclasses.replace(self, noted=noted, followed=followed)

    @property
    def notes_nothing(self) -> bool:
        """Whether a run is for its results alone."""
        return self.key == Probes().key

    @property
    def key(self) -> object:
        """Equal for probes that have a loop run alike."""
        # What is noted is an output of a compiled body, so it is part of the program.
        is_noted = self.noted is not None
        return is_noted, self.note, self.watched, self.changed

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
            if kind != DECISION:
                continue
            if number in numbers:
                followed[key] = note
        return followed

    def add(self, noted: Noted) -> None:
        """Adds what was noted beside, or inside of a loop or of branches."""
        if self.noted is not None:
            self.noted.update(noted)

    def checked(self, node: Node, operands: Arrays, results: Arrays) -> Arrays:
        """Notes the decision of an equation; returns its results, changed if asked."""
        if self.watched is not None:
            notes = self.watched.notes(node, operands, results)
            self.add(notes)
        if self.noted is not None and self.note is None:
            decision = decision_of(node, operands, results)
            if decision is not None:
                key = (node.number, DECISION)
                self.add({key: decision})
        # An audit asks whether numbers that do not fit change any output.
        if node.number == self.changed:
            return [otherwise(node, operands, results[0])]
        return results

    def results(self, number: int, results: Values, operands: Values) -> None:
        """Notes the results of an equation, if these are noted."""
        if self.note is None:
            return
        wide_operands = list(map(wide_form, operands))
        for place, result in enumerate(results):
            # A constant that is rounded as written has made nothing yet.
            wide_result = wide_form(result)
            noted = self.note(wide_result, wide_operands)
            if noted is not None:
                # JAX sorts keys, and those of decisions are words.
                key = (number, str(place))
                self.add({key: noted})


def decision_of(node: Node, operands: Arrays, results: Arrays) -> Leaf | None:
    """Returns what an equation has decided by floats; None if nothing."""
    # Integers are the same on both sides, and so is what they decide.
    kinds = [value_kind(var.aval) for var in node.eqn.invars]
    if "float" not in kinds:
        return None
    if node.name in SELECTS:  # the last operand tells which of the first to take
        return operands[-1]
    place = _decided_place(node)
    if place is None:
        return None
    return results[place]


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
