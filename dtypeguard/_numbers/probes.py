"""What a run notes beside its results, and which decisions it follows.

A program decides by floating values: comparisons, orders, indices, signs. A run may note
its decisions, and another one may follow them.
"""

import dataclasses
from collections.abc import Callable, Sequence

from .._leaves.types import Leaf
from .._program.jaxprs import value_kind
from .._program.program import Node
from .arithmetic import Value, wide_form
from .integers import NOTHING, Watched, otherwise
from .nodes import Noted
from .primitives import OF_OWN_DTYPES, SELECTS

_VALUES = frozenset(["eq", "ne", "lt", "le", "gt", "ge", "sign", "floor", "ceil", "round"])
_DECIDING = _VALUES | SELECTS

# What a note of a decision is of, in place of a result.
DECISION = "decision"


@dataclasses.dataclass
class Probes:
    """Notes beside the results of a run, and decisions for it to follow.

    Attributes:
        noted: gets what is noted; None if nothing is.
        note: returns what is noted of a result, of it and its operands. Without it the
            decisions are noted.
        followed: the decisions that the run follows; None if it makes its own.
        watched: the equations of which more is noted than decisions.
        changed: the number of an equation whose results that do not fit are others.
    """

    noted: Noted | None = None
    note: Callable[[Leaf, Sequence[Leaf]], Leaf | None] | None = None
    followed: Noted | None = None
    watched: Watched = NOTHING
    changed: int | None = None

    def empty(self, followed: Noted | None) -> "Probes":
        """Returns the same probes with nothing noted yet."""
        noted = None if self.noted is None else {}
        return dataclasses.replace(self, noted=noted, followed=followed)

    @property
    def notes_nothing(self) -> bool:
        """Whether a run is for its results alone."""
        return self.key == Probes().key

    @property
    def key(self) -> object:
        """Equal for probes that have a loop run alike."""
        # What is noted is an output of a compiled body, so it is part of the program.
        return self.noted is None, self.note, self.watched, self.changed

    def followed_at(self, node: Node) -> Leaf | None:
        """Returns the decision to follow at an equation."""
        followed = self.followed or {}
        return followed.get((node.number, DECISION))

    def followed_inside(self, node: Node) -> Noted | None:
        """Returns the decisions to follow inside of a loop or of branches."""
        if self.followed is None:
            return None
        first = node.inner[0].first
        numbers = range(first, node.number)
        followed = Noted()
        for key, note in self.followed.items():
            number, _ = key
            if number in numbers:
                followed[key] = note
        return followed

    def add(self, noted: Noted) -> None:
        """Adds what was noted beside, or inside of a loop or of branches."""
        if self.noted is not None:
            self.noted.update(noted)

    def checked(
        self, node: Node, operands: Sequence[Leaf], results: Sequence[Leaf]
    ) -> Sequence[Leaf]:
        """Notes the decision of an equation; returns its results, changed if asked."""
        notes = self.watched.notes(node, operands, results)
        if self.noted is not None and self.note is None and decides(node):
            notes[node.number, DECISION] = decision_of(node, operands, results)
        self.add(notes)
        # An audit asks whether numbers that do not fit change any output.
        if node.number == self.changed:
            return [otherwise(node, operands, results[0])]
        return results

    def results(
        self, number: int, results: Sequence[Value], operands: Sequence[Value]
    ) -> None:
        """Notes the results of an equation, if these are noted."""
        if self.noted is None or self.note is None:
            return
        wide_operands = [wide_form(operand) for operand in operands]
        for place, result in enumerate(results):
            # A constant that is rounded as written has made nothing yet.
            wide_result = wide_form(result)
            noted = self.note(wide_result, wide_operands)
            if noted is not None:
                # JAX sorts keys, and those of decisions are words.
                key = str(place)
                self.noted[number, key] = noted


def decides(node: Node) -> bool:
    """Returns whether an equation decides by floats."""
    # Integers are the same on both sides, and so is what they decide.
    kinds = [value_kind(var.aval) for var in node.eqn.invars]
    if "float" not in kinds:
        return False
    if node.name in OF_OWN_DTYPES:  # the pivots of a decomposition stay its own
        return False
    if node.name in _DECIDING:
        return True
    are_indices = [_is_index(var.aval) for var in node.eqn.outvars]
    return are_indices.count(True) == 1


def _is_index(value: Leaf) -> bool:
    return value_kind(value) in ("int", "uint")


def decision_of(node: Node, operands: Sequence[Leaf], results: Sequence[Leaf]) -> Leaf:
    """Returns what an equation has decided."""
    if node.name in _VALUES:
        return results[0]
    if node.name in SELECTS:  # the last operand tells which of the first to take
        return operands[-1]
    are_indices = [_is_index(result) for result in results]
    return results[are_indices.index(True)]


def results_following(node: Node, results: Sequence[Leaf], decision: Leaf) -> list[Leaf]:
    """Returns the results of an equation with another decision than its own."""
    if node.name in _VALUES:
        return [decision.astype(results[0].dtype)]
    following = []
    for result in results:
        if _is_index(result):
            result = decision
        following.append(result)
    return following
