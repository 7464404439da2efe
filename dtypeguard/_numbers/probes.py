"""What a run notes beside its results, and which decisions it follows.

A program decides by floating values: comparisons, orders, indices, signs. A run may note
its decisions, and another one may be given them.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from .._leaves.dtypes import kind
from .._leaves.types import Leaf
from .._program.program import Node
from .arithmetic import Value, wide_form
from .evaluate import of_mesh
from .integers import NOTHING, Watched, otherwise
from .nodes import Noted
from .primitives import OF_OWN_DTYPES, SELECTS, is_key

_VALUES = frozenset(["eq", "ne", "lt", "le", "gt", "ge", "sign", "floor", "ceil", "round"])


@dataclasses.dataclass
class Probes:
    """What a run notes beside its results, and which decisions it is given.

    Attributes:
        noted: gets what is noted; None if nothing is.
        note: what is noted of a result and what it is made of, if anything. Without it, it
            is the decisions.
        given: the decisions that it follows; None if it makes its own.
        watched: the equations of which more is noted than decisions, in `watched_notes`.
        changed: the number of an equation whose results that do not fit are others.
    """

    noted: Noted | None = None
    note: Callable[[Leaf, Sequence[Leaf]], Leaf | None] | None = None
    given: Noted | None = None
    watched: Watched = NOTHING
    watched_notes: Noted = dataclasses.field(default_factory=dict)
    changed: int | None = None

    def empty(self, given: Noted | None) -> "Probes":
        """The same with nothing noted yet."""
        noted = None if self.noted is None else {}
        return Probes(noted, self.note, given, watched=self.watched, changed=self.changed)

    @property
    def all_notes(self) -> "Notes":
        """What is noted of a turn of a loop."""
        return self.noted, self.watched_notes

    @property
    def key(self) -> object:
        """The same for probes that have a loop run alike."""
        return self.noted is None, self.note, self.watched, self.changed

    def given_for(self, node: Node) -> Leaf | None:
        """The decision that is given for an equation."""
        return None if self.given is None else self.given.get(node.number)

    def given_inside(self, node: Node) -> Noted | None:
        """The decisions that are given for what is inside of an equation."""
        if self.given is None:
            return None
        inside = range(node.inner[0].first, node.number)
        return {n: x for n, x in self.given.items() if n in inside}

    def add(self, turns: Sequence["Notes"]) -> None:
        """Adds what was noted in each turn of a loop."""
        if self.noted is not None:
            self.noted |= joined_turns([noted or {} for noted, _ in turns])
        self.watched_notes |= joined_turns([notes for _, notes in turns])

    def checked(
        self, node: Node, operands: Sequence[Leaf], made: Sequence[Leaf]
    ) -> Sequence[Leaf]:
        """Notes what is watched of an equation; its results, changed if they shall be."""
        self.watched_notes |= self.watched.notes(node, operands, made)
        return [otherwise(node, operands, made[0])] if node.number == self.changed else made

    def decide(self, node: Node, decision: Callable[[], Leaf]) -> None:
        """Notes what an equation decides, if decisions are noted."""
        if self.noted is not None and self.note is None and decides(node):
            self.noted[node.number] = decision()

    def results(self, number: int, made: Sequence[Value], values: Sequence[Value]) -> None:
        """Notes the results of an equation, if these are noted."""
        if self.noted is None or self.note is None:
            return
        operands = [*map(wide_form, values)]
        for place, value in enumerate(map(wide_form, made)):
            noted = self.note(value, operands)
            if noted is not None:
                self.noted[number, place] = noted


Notes = tuple[Noted | None, Noted]


def decides(node: Node) -> bool:
    """Whether an equation decides by floating values, or a loop how often it turns."""
    if node.rule == "while":
        return True
    if not any(_kind_of_value(var) == "float" for var in node.eqn.invars):
        return False
    if node.name in OF_OWN_DTYPES:  # the pivots of a decomposition stay its own
        return False
    is_known = node.name in _VALUES or node.name in SELECTS or node.name == "sort"
    return is_known or any(
        _kind_of_value(var) in ("int", "uint") for var in node.eqn.outvars
    )


def _kind_of_value(var: Leaf) -> str | None:
    return kind(getattr(var.aval, "dtype", np.dtype(bool)))


def _is_index(x: Leaf) -> bool:
    return kind(x.dtype) in ("int", "uint")


def decision(node: Node, operands: Sequence[Leaf], made: Sequence[Leaf]) -> Leaf:
    """What an equation that decides has decided."""
    if node.name in _VALUES:
        return made[0]
    if node.name in SELECTS:  # the last operand tells which of the first to take
        return operands[-1]
    if node.name != "sort":
        return next(filter(_is_index, made))
    params = node.eqn.params
    places = lax.broadcasted_iota(np.int32, operands[0].shape, params["dimension"])
    return lax.sort([*operands, places], **params)[-1]


def following(
    node: Node, operands: Sequence[Leaf], made: Sequence[Leaf], other: Leaf
) -> list[Leaf]:
    """The results of an equation with another decision than its own."""
    if node.name in _VALUES:
        return [other.astype(made[0].dtype)]
    if node.name == "sort":
        axis = node.eqn.params["dimension"]
        return [jnp.take_along_axis(x, other, axis) for x in operands]
    if node.name == "top_k":
        axis = node.eqn.params.get("axis", -1)
        return [jnp.take_along_axis(operands[0], other, axis), other]
    return [other if _is_index(x) else x for x in made]


def stacked(rows: Sequence[Leaf]) -> Leaf:
    """Arrays of each turn of a loop as one."""
    first = rows[0]
    is_whole = not isinstance(first, Tracer) and len(first.sharding.device_set) == 1
    if is_whole and not is_key(first) and jax.typeof(first).sharding.mesh.empty:
        # On the host: XLA takes seconds to compile it for a thousand operands.
        return jnp.asarray(np.stack([*map(np.asarray, rows)]))
    with of_mesh(first):
        return jnp.stack([*rows])


def joined_turns(turns: Sequence[Noted]) -> Noted:
    """What was noted in each turn of a loop, with an axis for the turns.

    A branch that was not taken in one of them, or a loop that took fewer turns, has noted
    zeros.
    """
    every = {key for noted in turns for key in noted}
    return {key: stacked(_filled([noted.get(key) for noted in turns])) for key in every}


def _filled(rows: Sequence[Leaf | None]) -> list[Leaf]:
    """Rows of one shape: what is missing is 0."""
    known = [x for x in rows if x is not None]
    shape = np.max([x.shape for x in known], axis=0).astype(int).tolist()
    more = lambda x: [(0, n - m) for n, m in zip(shape, x.shape)]
    zeros = jnp.zeros(shape, known[0].dtype)
    fits = lambda x: x.shape == zeros.shape
    return [zeros if x is None else x if fits(x) else jnp.pad(x, more(x)) for x in rows]
