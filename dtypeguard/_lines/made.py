"""How a value of a script came to be, as far as a recorder saw it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._source.origin import Frame, Why, origin_of_frames


class Made(NamedTuple):
    """How a value came to be.

    Attributes:
        through: the line and its callers, inside out; empty if it was only read.
        type: its dtype, and whether it is weak.
        sources: what may have given it its type: what an argument stands for, what the
            function of a result returned, for others what the line reads.
        is_promoted: whether the line reads other types as well.
        is_passed: whether it is an argument or a result.
        is_host: whether it is an array of NumPy, and no global one.
    """

    through: Sequence[Frame]
    type: tuple[Any, bool]
    sources: Sequence["Made"] = ()
    is_promoted: bool = False
    is_passed: bool = False
    is_host: bool = False

    def steps(self, known: "dict[int, list[Made]] | None" = None) -> "list[Made]":
        """The lines that gave it its type, nearest first.

        They go back as long as what a line reads has the type from one line alone.
        """
        known = {} if known is None else known
        if id(self) not in known:
            known[id(self)] = []
            alike = [x for x in self.sources if self.is_passed or x.type == self.type]
            behind = [each.steps(known) for each in alike]
            roots = {steps[-1].through[0] if steps else None for steps in behind}
            own = [self] if self.through and not self.is_passed else []
            further = max(behind, key=len) if len(roots) == 1 else []
            known[id(self)] = own + further
        return known[id(self)]

    def why(self) -> Why:
        """The line that gave it its type, and the one to edit for another."""
        steps = self.steps()
        if not steps:
            return Why()
        promotion = next((each for each in steps if each.is_promoted), steps[0])
        origin, cause = (origin_of_frames(x.through) for x in (promotion, steps[-1]))
        cause = None if cause == origin else cause
        return Why(origin, cause, is_promoted=promotion.is_promoted)


_KINDS = {int: "iu", float: "f", complex: "c"}  # of NumPy


def as_array(made: Made, type_: tuple[Any, bool]) -> Made | None:
    """How the number came to be that an array of a type may be made of."""
    kinds = _KINDS.get(made.type[0])
    if kinds is None:
        return made
    return made._replace(type=type_) if type_[0].kind in kinds else None
