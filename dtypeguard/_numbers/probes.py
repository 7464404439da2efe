"""What a run notes beside its results, and which decisions it follows."""

import dataclasses
from collections import UserDict
from collections.abc import Callable, MutableMapping, Sequence

import jax.numpy as jnp
import numpy as np

from .._leaves.types import Leaf
from .arithmetic import Either, Value
from .nodes import Node
from .primitives import is_inexact

# By the number of the equation; of a loop, with an axis for its turns.
Noted = MutableMapping[int, Leaf]
# By the numbers of the equation and of the result; of what enters a body, by that of it.
Counts = dict[tuple[int, int], Leaf]


class KeptValues(UserDict[int, Leaf]):
    """What a run notes, in few bytes: the decisions of a whole program are kept."""

    def __setitem__(self, number: int, noted: Leaf):
        is_whole = len(noted.sharding.device_set) == 1 and noted.size
        pack = _PACKED.get(noted.dtype) if is_whole else None
        self.data[number] = noted if pack is None else (pack(np.asarray(noted)), noted.aval)

    def __getitem__(self, number: int) -> Leaf:
        kept = self.data[number]
        if not isinstance(kept, tuple):
            return kept
        array, like = kept
        if like.dtype == bool:
            array = np.unpackbits(array, count=like.size)
        return jnp.asarray(array.reshape(like.shape), like.dtype)


def _as_few_bytes(array: np.ndarray) -> np.ndarray:
    ends = map(np.min_scalar_type, (array.min(), array.max()))
    return array.astype(np.result_type(*ends))


_PACKED = {np.dtype(bool): np.packbits, np.dtype(np.int32): _as_few_bytes}


def not_finite_in(array: Leaf) -> Leaf | None:
    """How many elements are not finite, and how many are not a number."""
    if not is_inexact(array):
        return None
    return jnp.stack([jnp.sum(~jnp.isfinite(array)), jnp.sum(jnp.isnan(array))])


@dataclasses.dataclass
class Probes:
    """What a run notes beside its results, and which decisions it is given.

    Attributes:
        decisions: what it decided; None if that is not noted.
        given: the decisions that it follows; None if it makes its own.
        finite: what is noted of each result, by default how many elements are not finite,
            and how many are not a number; None if nothing is.
        note: what is noted of an array; None for nothing.
    """

    decisions: Noted | None = None
    given: Noted | None = None
    finite: Counts | None = None
    note: Callable[[Leaf], Leaf | None] = not_finite_in

    @property
    def follows_or_notes(self) -> bool:
        """Whether it has to do with decisions."""
        return self.decisions is not None or self.given is not None

    def empty(self, given: Noted | None) -> "Probes":
        """The same with nothing noted yet."""
        none = lambda noted: None if noted is None else {}
        return Probes(none(self.decisions), given, none(self.finite), self.note)

    def given_within(self, first: int, last: int) -> Noted | None:
        """The decisions that are given for equations in a range."""
        given = self.given
        return None if given is None else {n: given[n] for n in given if first <= n <= last}

    def given_inside(self, node: Node) -> Noted | None:
        """The decisions that are given for the turns of a loop."""
        return self.given_within(node.inner[0].first, node.number - 1)

    def add(self, decisions: Noted | None, finite: Counts | None) -> None:
        """Adds what was noted inside."""
        if self.decisions is not None:
            self.decisions.update(decisions or {})
        if self.finite is not None:
            self.finite |= finite or {}

    def count(self, number: int, made: Sequence[Value]) -> None:
        """Notes the results of an equation, or what enters a body."""
        assert self.finite is not None
        for place, value in enumerate(made):
            noted = self.note(value.wide if isinstance(value, Either) else value)
            if noted is not None:
                self.finite[number, place] = noted
