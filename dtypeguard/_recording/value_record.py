"""How a value came to be: its line, and what may have given it its type."""

import dataclasses
import functools
from collections.abc import Sequence
from operator import attrgetter

from .._source.origin import Frame, Why, origin_of_frames
from .values import ValueType, names_in_jax

_NUMPY_KINDS = {int: "iu", float: "f", complex: "c"}


@dataclasses.dataclass(frozen=True, eq=False)
class ValueRecord:
    """How a value came to be.

    Attributes:
        frames: the line and its callers, inside out; empty for a value without a line.
        type: of the value.
        sources: what may have given it its type: what an argument stands for, what the
            function of a result returned, else what the line reads of that type.
        is_promoted: whether the line reads other types as well.
        is_passed: whether it is an argument or a result.
    """

    frames: Sequence[Frame]
    type: ValueType
    sources: "Sequence[ValueRecord]" = ()
    is_promoted: bool = False
    is_passed: bool = False

    @functools.cached_property
    def steps(self) -> "Sequence[ValueRecord]":
        """The records that gave it its type, nearest first.

        They go back as long as what a line reads has the type from one line alone.
        """
        longest: Sequence[ValueRecord] = ()
        first_lines = set()
        for source in self.sources:
            steps = source.steps
            first_line = None
            if steps:
                first_line = steps[-1].frames[0]
            first_lines.add(first_line)
            longest = max(longest, steps, key=len)
        if len(first_lines) != 1:
            longest = ()
        if self.is_passed:
            return longest
        if not self.frames:
            return longest
        return (self, *longest)

    def why(self) -> Why:
        """Returns the line that gave the value its type, and the line to edit."""
        if not self.steps:
            is_earlier = not self.frames and not self.sources
            return Why(is_earlier=is_earlier)
        # The nearest line that promotes is the one to cast at.
        promotion = max(self.steps, key=attrgetter("is_promoted"))
        first = self.steps[-1]
        origin = origin_of_frames(promotion.frames)
        cause = origin_of_frames(first.frames)
        if cause == origin:
            cause = None
        return Why(origin, cause, is_promoted=promotion.is_promoted)

    def may_give(self, array_type: ValueType) -> bool:
        """Returns whether an array of a type may have it from this value."""
        kinds = _NUMPY_KINDS.get(self.type.dtype)
        if kinds is not None:
            return array_type.dtype.kind in kinds
        if self.type.is_weak != array_type.is_weak:
            return False
        return str(array_type.dtype) in names_in_jax(self.type.dtype)
