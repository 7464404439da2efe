"""Walks back from a value of a program to the equation that gave it a property."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from .._leaves.dtypes import is_weak, kind
from .._leaves.types import Aval
from .._program.graph import Equation, Graph
from .._program.jaxprs import SHAPES
from .._tracebacks.written import Written

# Returns whether an abstract value has a property: a dtype, say, or a shape.
Matches = Callable[[Aval], bool]


@dataclasses.dataclass(frozen=True)
class Blame:
    """The equations that gave a value its property.

    Attributes:
        promotion: the equation that gave it to the leaf; None if there is none.
        cause: the equation that made the operand which forced the promotion. For a
            constant operand, the equation that uses it first. None if nothing forced it,
            or an input did.
        operand: the operand in the graph, if it is an input or a constant: a literal, or
            closed over.
    """

    promotion: Equation | None = None
    cause: Equation | None = None
    operand: int | None = None


class Region:
    """The values that have a property, and the walk back through them."""

    def __init__(self, graph: Graph, matches: Matches):
        self.graph = graph
        self.matches = matches

    def has(self, value: int) -> bool:
        """Returns whether a value imposes the property: a Python number does not."""
        aval = self.graph.avals[value]
        if is_weak(aval) and value in self.graph.constants:
            return False
        return self.matches(aval)

    def forcing_operands(self, equation: Equation) -> list[int]:
        """Returns the operands that impose the property."""
        return [value for value in equation.inputs if self.has(value)]

    def sources(self, value: int) -> Sequence[int]:
        """Returns the values from which a value may have the property."""
        equation = self.graph.made_by.get(value)
        if equation is None:
            return self.graph.same_as(value)
        return self.forcing_operands(equation)

    def walk(self, starts: Sequence[int]) -> Iterator[int]:
        """Yields the values of the region behind some, nearest first."""
        return self.graph.behind(starts, self.sources)

    def narrow_kinds(self, value: int, leaves: int) -> set[str | None]:
        """Returns the kinds of the operands to which an equation gives the property.

        Args:
            value: its result.
            leaves: the inputs that count, with what depends on them, as bits.
        """
        equation = self.graph.made_by.get(value)
        # With an operand of the property it converts the others by equations of their own.
        if equation is None or self.forcing_operands(equation):
            return set()
        kinds = set()
        for operand in equation.inputs:
            if self.graph.dependencies(operand) & leaves:
                kinds.add(kind_of(self.graph, operand))
        return kinds

    def partners(self, promoted: int, walked: Sequence[int]) -> Sequence[int]:
        """Returns the operands that forced a promotion, where its value meets them.

        Args:
            promoted: the value that was promoted.
            walked: what lies between it and the output, from the output on.
        """
        reshaped = {promoted}
        for value in reversed(walked):
            sources = self.graph.sources(value)
            if value != promoted and reshaped.isdisjoint(sources):
                continue
            equation = self.graph.made_by.get(value)
            if equation is None:  # it crosses the boundary of a call
                reshaped.add(value)
                continue
            partners = []
            for operand in self.forcing_operands(equation):
                if operand not in reshaped and not self.is_implicit_cast(operand):
                    partners.append(operand)
            if partners:
                return partners
            if equation.primitive in SHAPES:
                reshaped.add(value)
        return []

    def root(self, starts: Sequence[int]) -> Blame:
        """Returns the equation from which values have the property, as a cause.

        For a constant that is the equation that uses it; for an input, there is none.
        """
        first = None
        walked = []
        for value in self.walk(starts):
            walked.append(value)
            # What comes in has its line outside of the program.
            if value < len(self.graph.inputs):
                return Blame(operand=value)
            begin = self._begin(value, walked)
            # What a function of JAX converts by itself follows what it was given.
            if begin is not None and begin.cause is not None:
                if Written(begin.cause.stack).is_of_users:
                    return begin
                first = first or begin
        if first is not None:
            return first
        # A loop may start from a constant and add only values that fit it.
        for value in walked:
            if value in self.graph.constants:
                user = Equation("constant", (), self.graph.constants[value].user.stack)
                return Blame(cause=user, operand=value)
        return Blame()

    def _begin(self, value: int, walked: Sequence[int]) -> Blame | None:
        """Returns the equation of a value as a cause, if the property begins there."""
        equation = self.graph.made_by.get(value)
        if equation is None:
            return None
        operands = self.sources(value)
        if not operands:
            if self.is_implicit_cast(value) and self.partners(value, walked):
                return None
            return Blame(cause=equation)
        # A constant adds nothing to operands that have the property anyway.
        constants = [x for x in operands if x in self.graph.constants]
        computed = set(operands).difference(constants)
        if constants and all(map(self.is_implicit_cast, computed)):
            return Blame(cause=equation, operand=constants[0])
        return None

    def is_implicit_cast(self, value: int) -> bool:
        """Returns whether a function of JAX converts a value to the property by itself."""
        equation = self.graph.made_by.get(value)
        # `arange` and its like make the property from nothing, which is not a cast.
        if equation is None or equation.primitive != "convert_element_type":
            return False
        has_property = bool(self.forcing_operands(equation))
        return not has_property and not Written(equation.stack).is_explicit


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
    region = region_of(graph, matches)
    inputs = [value for value in graph.inputs if leaves >> value & 1]
    kinds = {kind_of(graph, value) for value in inputs}
    walked: list[int] = []
    promoted = 0
    replacement = None
    for value in region.walk([output]):
        walked.append(value)
        replacement = replacement or graph.made_by.get(value)
        kinds_of_operands = region.narrow_kinds(value, leaves)
        if not kinds.isdisjoint(kinds_of_operands):
            promoted = len(walked)
            break
        # A mask or a count of the leaf is to blame only if nothing else is.
        if kinds_of_operands and not promoted:
            promoted = len(walked)
    if promoted:
        return _blame_of_promotion(region, walked[:promoted])
    # The output no longer depends on the leaf: something replaced it.
    root = region.root([output])
    cause = None if root.cause is replacement else root.cause
    return Blame(replacement, cause, root.operand)


def _blame_of_promotion(region: Region, walked: Sequence[int]) -> Blame:
    """Returns what forced the promotion of the last of some values from the output on."""
    value = walked[-1]
    promotion = region.graph.made_by[value]
    partners = region.partners(value, walked)
    # A cast that the user wrote is its own cause.
    if not partners or Written(promotion.stack).is_explicit:
        return Blame(promotion)
    root = region.root(partners)
    return dataclasses.replace(root, promotion=promotion)


def region_of(graph: Graph, matches: Matches) -> Region:
    """Returns the region of a property, one for all values of a graph."""
    if matches not in graph.regions:
        graph.regions[matches] = Region(graph, matches)
    return graph.regions[matches]


def kind_of(graph: Graph, value: int) -> str | None:
    """Returns the kind of a value's dtype; None if it has none."""
    return kind(getattr(graph.avals[value], "dtype", None))
