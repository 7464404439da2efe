"""Walks back from a value that drifted to the equation that made it drift."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from .._leaves.dtypes import is_weak, kind
from .._leaves.types import Aval
from .graph import Equation, Graph
from .origins import is_explicit

# Whether an abstract value has a property: a dtype, say, or a shape.
Matches = Callable[[Aval], bool]

# The operand of these stays the operand, in another shape.
_SHAPES = {
    "broadcast_in_dim",
    "reshape",
    "squeeze",
    "transpose",
    "copy",
    "copy_p",
    "expand_dims",
}
# These promote operands of different dtypes without an equation for it.
_MIXING = {"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"}


class Blame(NamedTuple):
    """The equations that made a value drift.

    Attributes:
        promotion: the equation that gave the value its new property; None if there is none.
        cause: the equation that made the operand which forced the promotion. For a
            constant operand, the equation that uses it first. None if nothing forced it,
            or an input did.
        constant: whether the operand is a constant: a literal, or closed over.
    """

    promotion: Equation | None
    cause: Equation | None
    constant: bool = False


class _Region:
    """The values that have a property, and the walk back through them."""

    def __init__(self, graph: Graph, matches: Matches):
        self.graph = graph
        self.matches = matches

    def has(self, value: int) -> bool:
        return self.matches(self.graph.avals[value])

    def forces(self, value: int) -> bool:
        """Whether a value imposes the property on others: a Python scalar does not."""
        graph = self.graph
        is_scalar = value in graph.constants and is_weak(graph.avals[value])
        return self.has(value) and not is_scalar

    def forcing(self, equation: Equation) -> list[int]:
        return [value for value in equation.inputs if self.forces(value)]

    def walk(self, *starts: int) -> Iterator[int]:
        """The values of the region behind `starts`, nearest first."""
        seen = set(starts)
        queue = list(starts)
        for value in queue:
            yield value
            equation = self.graph.made_by.get(value)
            same = self.graph.same.get(value, ())
            behind = self.forcing(equation) if equation else same
            queue += [source for source in behind if source not in seen]
            seen.update(behind)


def blame(graph: Graph, output: int, matches: Matches, leaves: int) -> Blame:
    """Finds what gave an output a property that the leaf it continues did not have.

    Args:
        graph: of the step.
        output: the value that drifted.
        matches: whether an abstract value has the property: the new dtype, say.
        leaves: the inputs that are the leaf, as the bits of an integer.

    Returns:
        As the promotion, the equation nearest to the output that depends on the leaf, has
        an operand without the property, and gives a result with it. The walk stops where
        the property is lost: an earlier promotion that was undone is not to blame.
    """
    region = _Region(graph, matches)
    walked: list[int] = []
    for value in region.walk(output):
        walked.append(value)
        narrow = _narrow_inputs(region, value)
        if any(graph.dependencies(source) & leaves for source in narrow):
            equation = graph.made_by[value]
            user, partners = _partners(region, value, walked)
            if not partners or is_explicit(equation.stack):
                return Blame(equation, None)
            return Blame(equation, *_root(region, partners, user))
    # The output no longer depends on the leaf: something replaced it.
    made = next((graph.made_by[value] for value in walked if value in graph.made_by), None)
    cause, constant = _root(region, [output])
    return Blame(made, None if cause is made else cause, constant and cause is not made)


def source(graph: Graph, output: int, matches: Matches) -> Equation | None:
    """The equation that first gave an output a property."""
    return _root(_Region(graph, matches), [output])[0]


def _narrow_inputs(region: _Region, value: int) -> list[int]:
    """The operands without the property, of an equation that introduces it; else none."""
    equation = region.graph.made_by.get(value)
    if equation is None:
        return []
    narrow = [
        v for v in equation.inputs if not region.has(v) and v not in region.graph.constants
    ]
    if not region.forcing(equation):
        return narrow
    if equation.primitive not in _MIXING:
        return []  # a predicate, an index, an integer exponent
    dtype = region.graph.avals[value].dtype
    same_kind = lambda v: kind(region.graph.avals[v].dtype) == kind(dtype)
    return [v for v in narrow if same_kind(v)]


def _partners(
    region: _Region, promoted: int, walked: list[int]
) -> tuple[Equation | None, list[int]]:
    """The equation that a promotion serves, and its operands that forced the promotion.

    Args:
        region: where the promotion is.
        promoted: the value that it gave the property.
        walked: the values of the region that are nearer to its output.
    """
    graph = region.graph
    equation = graph.made_by[promoted]
    if equation.primitive in _MIXING:
        return equation, region.forcing(equation)
    mine = {promoted}
    size = 0
    while size < len(mine):
        size = len(mine)
        for value in reversed(walked):
            user = graph.made_by.get(value)
            if user is None:
                if mine & set(graph.same.get(value, ())):
                    mine.add(value)
            elif mine & set(user.inputs):
                others = [
                    v
                    for v in region.forcing(user)
                    if v not in mine and not _is_implicit_cast(region, v)
                ]
                if others:
                    return user, others
                if user.primitive in _SHAPES:
                    mine.add(value)
    return None, []


def _root(
    region: _Region, starts: list[int], user: Equation | None = None
) -> tuple[Equation | None, bool]:
    """The equation from which some values have the property; whether it is a constant's.

    For a constant that is the equation that uses it; for an input, None.
    """
    graph = region.graph
    if user is not None and graph.constants.keys() >= set(starts):
        return user, True
    walked: list[int] = []
    for value in region.walk(*starts):
        walked.append(value)
        if value < len(graph.inputs):
            return None, False
        equation = graph.made_by.get(value)
        if equation is None:
            continue
        forcing = region.forcing(equation)
        variables = [source for source in forcing if source not in graph.constants]
        if not forcing:
            is_root = not _is_implicit_cast(region, value)
            if is_root or not _partners(region, value, walked)[1]:
                return equation, False
        elif not variables or (
            # A constant adds nothing to operands that have the property anyway.
            len(variables) < len(forcing)
            and all(_is_implicit_cast(region, source) for source in variables)
        ):
            return equation, True
    # A loop that starts from a constant and adds only values that fit it.
    constant = next((value for value in walked if value in graph.constants), None)
    if constant is None:
        return None, False
    return Equation("constant", (), graph.constants[constant]), True


def _is_implicit_cast(region: _Region, value: int) -> bool:
    equation = region.graph.made_by.get(value)
    # `arange` and its like make the property from nothing, which is not a cast.
    if equation is None or equation.primitive != "convert_element_type":
        return False
    return not region.forcing(equation) and not is_explicit(equation.stack)
