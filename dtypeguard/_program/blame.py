"""Walks back from a value that drifted to the equation that made it drift."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .._leaves.dtypes import kind
from .graph import Equation, Graph
from .origins import is_explicit

# Reshaped or not, it is the same operand.
_SHAPES = {
    "broadcast_in_dim",
    "reshape",
    "squeeze",
    "transpose",
    "copy",
    "copy_p",
    "expand_dims",
}
# These take operands of different dtypes, and promote them without an equation for it.
_MIXING = {"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"}


class Blame(NamedTuple):
    """What made a value drift.

    Attributes:
        promotion: the equation by which the leaf took on the property; None if there is
            none.
        cause: the equation that made the operand which forced it, or used that operand
            first if no equation made it. None if nothing forced it, or if that was an
            input.
        constant: whether no equation made the operand: it is a literal or was closed over.
    """

    promotion: Equation | None
    cause: Equation | None
    constant: bool = False


class _Region:
    """All values that have the property, back from a drifted output, nearest first."""

    def __init__(self, graph: Graph, matches: Callable[[Any], bool]):
        self.graph = graph
        self.matches = matches

    def has(self, value: int) -> bool:
        return self.matches(self.graph.avals[value])

    def forces(self, value: int) -> bool:
        """Whether a value brings the property along: a Python scalar does not."""
        graph = self.graph
        is_scalar = value in graph.constants and getattr(
            graph.avals[value], "weak_type", False
        )
        return self.has(value) and not is_scalar

    def fed(self, equation: Equation) -> list[int]:
        return [value for value in equation.inputs if self.forces(value)]

    def walk(self, *starts: int) -> Iterator[int]:
        """The values of the region that lead to `starts`, in order of distance."""
        seen = set(starts)
        queue = list(starts)
        for value in queue:
            yield value
            equation = self.graph.made_by.get(value)
            behind = self.fed(equation) if equation else self.graph.same.get(value, ())
            queue += [source for source in behind if source not in seen]
            seen.update(behind)


def blame(graph: Graph, output: int, matches: Callable[[Any], bool], leaves: int) -> Blame:
    """What gave an output a property that the leaf it continues did not have.

    Args:
        graph: of the update.
        output: the value that drifted.
        matches: whether an abstract value has the property: the new dtype, say.
        leaves: the inputs of the graph that are the leaf, as the bits of an integer.

    Returns:
        The nearest equation, going back from the output, that turns something which depends
        on the leaf and lacks the property into something which has it. What was given the
        property and lost it again on the way is not gone through.
    """
    region = _Region(graph, matches)
    walked: list[int] = []
    for value in region.walk(output):
        walked.append(value)
        narrow = _narrow_inputs(region, value)
        if any(graph.origins(source) & leaves for source in narrow):
            equation = graph.made_by[value]
            user, partners = _partners(region, value, walked)
            if not partners or is_explicit(equation.stack):
                return Blame(equation, None)
            return Blame(equation, *_root(region, partners, user))
    # Nothing of the leaf is in there any more: it was replaced.
    made = next((graph.made_by[value] for value in walked if value in graph.made_by), None)
    cause, constant = _root(region, [output])
    return Blame(made, None if cause is made else cause, constant and cause is not made)


def source(graph: Graph, output: int, matches: Callable[[Any], bool]) -> Equation | None:
    """The equation that first gave an output a property."""
    return _root(_Region(graph, matches), [output])[0]


def _narrow_inputs(region: _Region, value: int) -> list[int]:
    """The inputs without the property of an equation that gives it; none of others."""
    equation = region.graph.made_by.get(value)
    if equation is None:
        return []
    narrow = [
        v for v in equation.inputs if not region.has(v) and v not in region.graph.constants
    ]
    if not region.fed(equation):
        return narrow
    if equation.primitive not in _MIXING:
        return []  # a predicate, an index, an integer exponent
    dtype = region.graph.avals[value].dtype
    same_kind = lambda v: kind(region.graph.avals[v].dtype) == kind(dtype)
    return [v for v in narrow if same_kind(v)]


def _partners(
    region: _Region, promoted: int, walked: list[int]
) -> tuple[Equation | None, list[int]]:
    """What a promotion was for, and the operands of that which have the property anyway.

    Args:
        region: where the promotion is.
        promoted: the value that it gave the property.
        walked: the values of the region that are nearer to its output.
    """
    graph = region.graph
    equation = graph.made_by[promoted]
    if equation.primitive in _MIXING:
        return equation, region.fed(equation)
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
                    for v in region.fed(user)
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
    """Where the property of some values comes from, and whether from a constant.

    Of a constant the equation that uses it is given; of an input, none.
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
        fed = region.fed(equation)
        variables = [source for source in fed if source not in graph.constants]
        if not fed:
            is_root = not _is_implicit_cast(region, value)
            if is_root or not _partners(region, value, walked)[1]:
                return equation, False
        elif not variables or (
            # A constant next to what has the property anyway adds nothing to it.
            len(variables) < len(fed)
            and all(_is_implicit_cast(region, source) for source in variables)
        ):
            return equation, True
    # A loop that starts from a constant and adds only what fits it.
    constant = next((value for value in walked if value in graph.constants), None)
    if constant is None:
        return None, False
    return Equation("constant", (), graph.constants[constant]), True


def _is_implicit_cast(region: _Region, value: int) -> bool:
    equation = region.graph.made_by.get(value)
    # `arange`, say, has the property out of nothing, which is no cast.
    if equation is None or equation.primitive != "convert_element_type":
        return False
    return not region.fed(equation) and not is_explicit(equation.stack)
