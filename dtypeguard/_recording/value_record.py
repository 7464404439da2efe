"""How a value came to be: its line, and what may have given it its type."""

import dataclasses
from collections.abc import Sequence

from .._source.origin import Frame, Why, origin_of_frames
from .values import ValueType

_NUMPY_KINDS = {int: "iu", float: "f", complex: "c"}


@dataclasses.dataclass(frozen=True, eq=False)
class ValueRecord:
    """How a value came to be.

    Attributes:
        frames: the line and its callers, inside out; empty for a value without a line.
        type: of the value.
        sources: what may have given it its type: what an argument stands for, what the
            function of a result returned, else what the line reads.
        is_promoted: whether the line reads other types as well.
        is_passed: whether it is an argument or a result.
    """

    frames: Sequence[Frame]
    type: ValueType
    sources: "Sequence[ValueRecord]" = ()
    is_promoted: bool = False
    is_passed: bool = False

    @property
    def line(self) -> Frame | None:
        """The line of the value; None for a value without a line."""
        return self.frames[0] if self.frames else None

    def steps(self) -> "list[ValueRecord]":
        """Returns the records that gave it its type, nearest first.

        They go back as long as what a line reads has the type from one line alone.
        """
        return self._steps({})

    def _steps(self, steps_by_id: "dict[int, list[ValueRecord]]") -> "list[ValueRecord]":
        if id(self) not in steps_by_id:
            steps_by_id[id(self)] = []  # for a record that is behind itself
            steps = self._further_steps(steps_by_id)
            if self.frames and not self.is_passed:
                steps = [self, *steps]
            steps_by_id[id(self)] = steps
        return steps_by_id[id(self)]

    def _further_steps(
        self, steps_by_id: "dict[int, list[ValueRecord]]"
    ) -> "list[ValueRecord]":
        longest: list[ValueRecord] = []
        first_lines = set()
        for source in self.sources:
            if self.is_passed or self._has_type_of(source):
                steps = source._steps(steps_by_id)
                first_line = steps[-1].line if steps else None
                first_lines.add(first_line)
                longest = max(longest, steps, key=len)
        return longest if len(first_lines) == 1 else []

    def _has_type_of(self, source: "ValueRecord") -> bool:
        if source.type == self.type:
            return True
        # A complex number is as wide as the floats of which it is made.
        dtypes = (str(self.type.dtype), str(source.type.dtype))
        return dtypes == ("complex128", "float64") and not source.type.is_weak

    def why(self) -> Why:
        """Returns the line that gave the value its type, and the line to edit."""
        steps = self.steps()
        if not steps:
            return Why(is_earlier=not (self.frames or self.sources))
        # The nearest line that promotes is the one to cast at.
        promoted = [step for step in steps if step.is_promoted]
        promotion = promoted[0] if promoted else steps[0]
        origin = origin_of_frames(promotion.frames)
        cause = origin_of_frames(steps[-1].frames)
        if cause == origin:
            cause = None
        return Why(origin, cause, is_promoted=promotion.is_promoted)

    def as_source_of(self, array_type: ValueType) -> "ValueRecord | None":
        """Returns the record as that of an array; None for a number of another kind."""
        kinds = _NUMPY_KINDS.get(self.type.dtype)
        if kinds is None:
            return self
        if array_type.dtype.kind in kinds:
            return dataclasses.replace(self, type=array_type)
        return None
