"""Walks back from a value of a program to the equation that gave it a property."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from .._leaves.dtypes import is_weak, kind
from .._leaves.types import Aval
from .._program.graph import Graph
from .._program.jaxprs import SHAPES
from .._program.program import Node, User
from .._tracebacks.written import Written

# Returns whether an abstract value has a property: a dtype, say, or a shape.
Matches = Callable[[Aval], bool]


@dataclasses.dataclass(frozen=True)
class Blame:
    """The equations that gave a value its property.

    Attributes:
        promotion: the equation that gave it to the leaf; None if there is none.
        cause: the equation that made the operand which forced the promotion. For a
            constant operand, what uses it first. None if nothing forced it, or an input
            did.
        operand: the operand in the graph, if it is an input or a constant: a literal, or
            closed over.
    """

    promotion: Node | None = None
    cause: User | None = None
    operand: int | None = None


class Region:
    """The values that have a property, and the walk back through them."""

    def __init__(self, graph: Graph, matches: Matches):
        self.graph = graph
        self.matches = matches

    def has(self, value: int) -> bool:
        """Returns whether a value imposes the property: a Python number does not."""
        aval = self.graph.avals[value]
        # It takes the type of what it meets.
        if is_weak(aval) and value in self.graph.constants:
            return False
        return self.matches(aval)

    def sources(self, value: int) -> Sequence[int]:
        """Returns the values from which a value may have the property."""
        operands = self.graph.sources(value)
        if value not in self.graph.made_by:
            return operands
        sources = []
        for operand in operands:
            if self.has(operand):
                sources.append(operand)
        return sources

    def walk(self, starts: Sequence[int]) -> Iterator[int]:
        """Yields the values of the region behind some, nearest first."""
        return self.graph.behind(starts, self.sources)

    def is_begin(self, value: int) -> bool:
        """Returns whether the equation of a value reads nothing of the region."""
        # With an operand of the property it converts the others by equations of their own.
        if value not in self.graph.made_by:
            return False
        return not self.sources(value)

    def is_implicit_cast(self, value: int) -> bool:
        """Returns whether a function of JAX converts a value to the property by itself."""
        node = self.graph.made_by.get(value)
        # `arange` and its like make the property from nothing, which is not a cast.
        if node is None or node.name != "convert_element_type":
            return False
        if self.sources(value):
            return False
        return not Written(node.stack).is_explicit

    def forcing_operands(self, value: int) -> list[int]:
        """Returns the operands of an equation that JAX converts the rest for."""
        forcing = []
        for operand in self.sources(value):
            if not self.is_implicit_cast(operand):
                forcing.append(operand)
        return forcing

    def partners(self, promoted: int, walked: Sequence[int]) -> list[int]:
        """Returns the operands that forced a promotion, where its value meets them.

        Args:
            promoted: the value that was promoted.
            walked: what lies between it and the output, from the output on.
        """
        reshaped = {promoted}
        for value in reversed(walked):
            if reshaped.isdisjoint(self.sources(value)):
                continue
            node = self.graph.made_by.get(value)
            if node is None:  # it crosses the boundary of a call
                reshaped.add(value)
                continue
            partners = [x for x in self.forcing_operands(value) if x not in reshaped]
            if partners:
                return partners
            if node.name in SHAPES:
                reshaped.add(value)
        return []

    def root(self, starts: Sequence[int]) -> Blame:
        """Returns the equation from which values have the property, as a cause.

        For a constant that is the equation that uses it; for an input, there is none.
        """
        begins = []
        walked = []
        for value in self.walk(starts):
            walked.append(value)
            # What comes in has its line outside of the program.
            if value < len(self.graph.inputs):
                return Blame(operand=value)
            begin = self._begin(value, walked)
            if begin is None:
                continue
            # What a function of JAX converts by itself follows what it was given.
            if self._written(value).is_of_users:
                return begin
            begins.append(begin)
        # A loop may start from a constant and add only values that fit it.
        for value in walked:
            if value in self.graph.constants:
                begin = Blame(cause=self.graph.constants[value], operand=value)
                begins.append(begin)
        begins.append(Blame())
        return begins[0]

    def _begin(self, value: int, walked: Sequence[int]) -> Blame | None:
        """Returns the equation of a value as a cause, if the property begins there."""
        if value not in self.graph.made_by:
            return None
        node = self.graph.made_by[value]
        operands = self.sources(value)
        if not operands:
            # A cast that JAX makes for another operand begins nothing.
            if self.is_implicit_cast(value) and self.partners(value, walked):
                return None
            return Blame(cause=node)
        constants = self.graph.constants.keys() & set(operands)
        # A constant adds nothing to operands that have the property anyway.
        if constants and constants == set(self.forcing_operands(value)):
            return Blame(cause=node, operand=min(constants))
        return None

    def promotion(self, walked: Sequence[int]) -> Blame:
        """Returns the promotion of the last value walked to, and its cause."""
        promoted = walked[-1]
        node = self.graph.made_by[promoted]
        # A cast that the user wrote is its own cause.
        if self._written(promoted).is_explicit:
            return Blame(node)
        partners = self.partners(promoted, walked)
        return dataclasses.replace(self.root(partners), promotion=node)

    def _written(self, value: int) -> Written:
        node = self.graph.made_by[value]
        return Written(node.stack)


def blame(graph: Graph, output: int, matches: Matches, leaves: int) -> Blame:
    """Finds the equation that gave an output a property its leaf did not have.

    The promotion is the equation nearest to the output that depends on the leaf, has an
    operand without the property, and gives a result with it. The walk stops where the
    property is lost: an earlier promotion that was undone is not to blame.

    Args:
        graph: of the program.
        output: the value.
        matches: whether an abstract value has the property.
        leaves: the inputs that are the leaf, as bits.
    """
    region = Region(graph, matches)
    kinds = _kinds_of(graph, graph.inputs, leaves)
    walked: list[int] = []
    from_mask: list[int] = []
    for value in region.walk([output]):
        walked.append(value)
        if not region.is_begin(value):
            continue
        kinds_read = _kinds_of(graph, graph.sources(value), leaves)
        if kinds_read & kinds:
            return region.promotion(walked)
        # A mask or a count of the leaf is to blame only if nothing else is.
        if kinds_read and not from_mask:
            from_mask = list(walked)
    if from_mask:
        return region.promotion(from_mask)
    # The output no longer depends on the leaf: the nearest equation replaced it.
    replacement = None
    for value in walked:
        replacement = replacement or graph.made_by.get(value)
    root = region.root([output])
    cause = root.cause
    if cause is replacement:
        cause = None
    return Blame(replacement, cause, root.operand)


def _kinds_of(graph: Graph, values: Sequence[int], leaves: int) -> set[str]:
    """Returns the kinds of dtypes of the values that depend on some leaves."""
    kinds = set()
    for value in values:
        if graph.dependencies[value] & leaves:
            dtype = getattr(graph.avals[value], "dtype", None)
            kinds.add(kind(dtype))
    return kinds
