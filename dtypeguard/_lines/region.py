"""The values of a program that have a property, and the walk back through them."""

import functools
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from .._leaves.dtypes import is_weak, kind
from .._leaves.types import Aval
from .._program.graph import SHAPES, Equation, Graph
from .equations import Written

# Whether an abstract value has a property: a dtype, say, or a shape.
Matches = Callable[[Aval], bool]

_RETYPING = SHAPES | {"convert_element_type"}


class Region:
    """The values that have a property, and the walk back through them.

    Attributes:
        graph: of the program.
        matches: whether an abstract value has the property.
        roots: what `_root` found where its walk went on from one value alone.
    """

    def __init__(self, graph: Graph, matches: Matches):
        self.graph = graph
        self.matches = matches
        self.roots: dict[int, Any] = {}
        self._behind: dict[int, list[int]] = {}

    @functools.cached_property
    def casts(self) -> list[tuple[int, Equation]]:
        """What is cast to the property, but for the gradients of that."""
        return [
            (value, equation)
            for value, equation in self.graph.made_by.items()
            if equation.primitive == "convert_element_type" and self.has(value)
            if not self.has(equation.inputs[0]) and Written(equation.stack).is_explicit
            if not Written(equation.stack).is_backward
        ]

    def has(self, value: int) -> bool:
        return self.matches(self.graph.avals[value])

    def forces(self, value: int) -> bool:
        """Whether a value imposes the property on others: a Python scalar does not."""
        graph = self.graph
        is_scalar = value in graph.constants and is_weak(graph.avals[value])
        return self.has(value) and not is_scalar

    def forcing(self, equation: Equation) -> list[int]:
        return [value for value in equation.inputs if self.forces(value)]

    def imposing(self, values: Sequence[int]) -> list[int]:
        """Those of some forcing values that decide: weak types give way to strong ones."""
        return [value for value in values if not self.is_weakly(value)] or list(values)

    def is_weakly(self, value: int) -> bool:
        """Whether a value is weak, or was until it met a strong one."""
        graph = self.graph
        while not is_weak(graph.avals[value]):
            equation = graph.made_by.get(value)
            if equation is None or equation.primitive not in _RETYPING:
                return False
            value = equation.inputs[0]
            if Written(equation.stack).is_explicit or not self.has(value):
                return False
        return True

    def walk(self, start: int) -> Iterator[int]:
        """The values of the region behind one of them, nearest first."""
        seen = {start}
        queue = [start]
        for value in queue:
            yield value
            equation = self.graph.made_by.get(value)
            same = self.graph.same.get(value, ())
            behind = self.forcing(equation) if equation else same
            queue += [source for source in behind if source not in seen]
            seen.update(behind)

    def to_root(self, starts: Sequence[int]) -> Iterator[tuple[int, bool]]:
        """Values behind `starts`, without what gives way to the operand beside it.

        Each comes with whether it is the only one through which the walk goes on.
        """
        seen = set(starts)
        queue = list(starts)
        for number, value in enumerate(queue):
            yield value, number + 1 == len(queue)
            behind = self.behind(value)
            queue += [source for source in behind if source not in seen]
            seen.update(behind)

    def behind(self, value: int) -> list[int]:
        """The values that decide that a value has the property."""
        if value not in self._behind:
            equation = self.graph.made_by.get(value)
            same = list(self.graph.same.get(value, ()))
            found = self.imposing(self.forcing(equation)) if equation else same
            self._behind[value] = found
        return self._behind[value]

    def continues(self, value: int, leaves: int, kinds: Container[str | None]) -> bool:
        """Whether a value is computed from some inputs outside of the region.

        Args:
            value: where the walk starts.
            leaves: the inputs, as the bits of an integer.
            kinds: of dtypes that the values between may have.
        """
        graph = self.graph
        queue = [value]
        seen = set(queue)
        while queue:
            value = queue.pop()
            if self.has(value) or kind_of(graph, value) not in kinds:
                continue
            if not graph.dependencies(value) & leaves:
                continue
            if value < len(graph.inputs):
                return True
            equation = graph.made_by.get(value)
            behind = equation.inputs if equation else graph.same.get(value, ())
            queue += [source for source in behind if source not in seen]
            seen.update(behind)
        return False


def kind_of(graph: Graph, value: int) -> str | None:
    return kind(getattr(graph.avals[value], "dtype", None))


def nearest_input(graph: Graph, output: int, matches: Matches) -> int | None:
    """The input nearest to an output of all through which that has a property."""
    region = region_of(graph, matches)
    return next((value for value in region.walk(output) if value < len(graph.inputs)), None)


def region_of(graph: Graph, matches: Matches) -> Region:
    """The region of a property, one for all values of a graph that are asked about."""
    return graph.regions.setdefault(matches, Region(graph, matches))
