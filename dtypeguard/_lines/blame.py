"""Walks back from a value that drifted to the equation that made it drift."""

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .._leaves.dtypes import kind
from .._program.graph import PRODUCTS, SHAPES, Equation, Graph
from .equations import Written
from .region import Matches, Region, kind_of, region_of

# All that `kind` returns.
_ANY = {"bool", "int", "float", "complex", None}


class Blame(NamedTuple):
    """The equations that made a value drift.

    Attributes:
        promotion: the equation that gave the value its new property; None if there is none.
        cause: the equation that made the operand which forced the promotion. For a
            constant operand, the equation that uses it first. None if nothing forced it,
            or an input did.
        constant: whether the operand is a constant: a literal, or closed over.
        operand: the operand in the graph, if it is a constant or an input.
        between: the values that forced the promotion.
    """

    promotion: Equation | None
    cause: Equation | None = None
    constant: bool = False
    operand: int | None = None
    between: Sequence[int] = ()


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
    region = region_of(graph, matches)
    kinds = {kind_of(graph, value) for value in graph.inputs if leaves >> value & 1}
    walked: list[int] = []
    found: tuple[int, int] | None = None  # how sure it is, and its place in the walk
    for value in region.walk(output):
        walked.append(value)
        narrow = _narrow_inputs(region, value)
        narrow = [each for each in narrow if graph.dependencies(each) & leaves]
        if not narrow:
            continue
        # What was made from the leaf when that was promoted already is not to blame, and a
        # mask or a count only if nothing else is.
        is_so = (any(region.continues(x, leaves, y) for x in narrow) for y in (kinds, _ANY))
        sure = next((2 - n for n, continues in enumerate(is_so) if continues), 0)
        if found is None or sure > found[0]:
            found = sure, len(walked)
        if sure == 2:
            break
    if found is not None:
        walked = walked[: found[1]]
        equation = graph.made_by[walked[-1]]
        user, partners = _partners(region, walked[-1], walked)
        written = Written(equation.stack)
        is_cast = written.is_explicit and not written.names_another_dtype
        if not partners or is_cast:
            return Blame(equation)
        cast = _differentiated_as(region, partners, leaves)
        root = Blame(None, cast) if cast else _root(region, partners, user)
        return root._replace(promotion=equation, between=() if cast else partners)
    # The output no longer depends on the leaf: something replaced it.
    made = next((graph.made_by[value] for value in walked if value in graph.made_by), None)
    root = _root(region, [output])
    cause = None if root.cause is made else root.cause
    return root._replace(promotion=made, cause=cause)


def _differentiated_as(
    region: Region, partners: Sequence[int], leaves: int
) -> Equation | None:
    """The cast of the leaf before a gradient in it, which has the dtype of the cast.

    Whatever else is wide, the gradient in the leaf itself would have the leaf's own.
    """
    graph = region.graph
    shapes = [graph.avals[x].shape for x in graph.inputs if leaves >> x & 1]
    casts = [
        equation
        for value, equation in region.casts
        if graph.avals[value].shape in shapes
        if graph.dependencies(equation.inputs[0]) & leaves
    ]
    near = itertools.islice(region.walk(partners[0]), _NEAR) if casts else ()
    made = (graph.made_by[value] for value in near if value in graph.made_by)
    is_gradient = any(Written(each.stack).is_backward for each in made)
    return casts[0] if is_gradient else None


# Values between the end of a gradient and what uses it.
_NEAR = 20


def equations_behind(
    graph: Graph, starts: Sequence[int], matches: Matches, is_promotion: bool = False
) -> Iterator[Equation]:
    """What gave values a property, or only where they met wider ones; nearest first."""
    region = region_of(graph, matches)
    for value, _ in region.to_root(starts):
        equation = graph.made_by.get(value)
        if equation and (not is_promotion or _is_widening(region, value)):
            yield equation


def source(graph: Graph, output: int, matches: Matches) -> Equation | None:
    """The equation that first gave an output a property."""
    return _root(region_of(graph, matches), [output]).cause


def _narrow_inputs(region: Region, value: int) -> list[int]:
    """The operands without the property, of an equation that introduces it; else none."""
    equation = region.graph.made_by.get(value)
    if equation is None:
        return []
    narrow = [
        v for v in equation.inputs if not region.has(v) and v not in region.graph.constants
    ]
    if not region.forcing(equation):
        return narrow
    if equation.primitive not in PRODUCTS:
        return []  # a predicate, an index, an integer exponent
    dtype = region.graph.avals[value].dtype
    same_kind = lambda v: kind(region.graph.avals[v].dtype) == kind(dtype)
    return [v for v in narrow if same_kind(v)]


def _partners(
    region: Region, promoted: int, walked: list[int]
) -> tuple[Equation | None, list[int]]:
    """The equation that a promotion serves, and its operands that forced the promotion.

    Args:
        region: where the promotion is.
        promoted: the value that it gave the property.
        walked: the values of the region that are nearer to its output.
    """
    graph = region.graph
    equation = graph.made_by[promoted]
    if equation.primitive in PRODUCTS:
        return equation, region.forcing(equation)
    # A function of JAX may convert its arguments, and compute with each before they meet.
    same_kind = kind_of(graph, promoted) in {
        kind_of(graph, value) for value in equation.inputs
    }
    is_near = lambda user: same_kind and _are_in_one_call(user, equation)
    mine, computed = {promoted}, set[int]()
    size = 0
    while size < len(mine | computed):
        size = len(mine | computed)
        for value in reversed(walked):
            user = graph.made_by.get(value)
            if user is None:
                if mine & set(graph.same.get(value, ())):
                    mine.add(value)
                continue
            is_mine = bool(mine & set(user.inputs))
            if not is_mine and not (computed & set(user.inputs) and is_near(user)):
                continue
            others = [
                v
                for v in region.forcing(user)
                if v not in mine | computed and not _is_implicit_cast(region, v)
            ]
            if others:
                return user, region.imposing(others)
            if is_mine and user.primitive in SHAPES:
                mine.add(value)
            elif is_near(user):
                computed.add(value)
    return None, []


def _are_in_one_call(one: Equation, other: Equation) -> bool:
    """Whether two equations are in one call of a jitted function."""
    calls = one.stack[1:], other.stack[1:]
    return len(calls[0]) == len(calls[1]) > 0 and all(map(operator.is_, *calls))


def _root(region: Region, starts: list[int], user: Equation | None = None) -> Blame:
    """The equation from which some values have the property, as a cause.

    For a constant that is the equation that uses it; for an input, None.
    """
    graph = region.graph
    if user is not None and graph.constants.keys() >= set(starts):
        return Blame(None, user, True, starts[0])
    walked: list[int] = []
    passed: list[int] = []  # from each of them alone, the walk comes to the same root
    own: Blame | None = None

    def kept(found: Blame) -> Blame:
        region.roots.update(dict.fromkeys(passed, found))
        return found

    for value, is_alone in region.to_root(starts):
        walked.append(value)
        found: Blame | None = None
        if is_alone and own is None:
            if value in region.roots:
                return kept(region.roots[value])
            passed.append(value)
        if value < len(graph.inputs):
            return kept(Blame(None, operand=value))
        equation = graph.made_by.get(value)
        if equation is None:
            continue
        forcing = region.behind(value)
        variables = [source for source in forcing if source not in graph.constants]
        if not forcing:
            is_root = not _is_implicit_cast(region, value)
            if is_root or not _partners(region, value, walked)[1]:
                found = Blame(None, equation)
        elif not variables or (
            # A constant adds nothing to operands that have the property anyway.
            len(variables) < len(forcing)
            and all(_is_implicit_cast(region, source) for source in variables)
        ):
            constant = next(each for each in forcing if each in graph.constants)
            found = Blame(None, equation, True, constant)
        # A gradient begins with a 1 of the loss's type, which forces nothing.
        written = Written(equation.stack)
        is_seed = found is not None and found.constant and written.is_backward
        # A cast to the dtype of another value follows that.
        follows = is_seed or written.names_another_dtype
        if found is not None and written.is_of_users and not follows:
            return kept(found)
        # What a function of JAX converts by itself follows the type that it was given.
        own = own or found
    if own is not None:
        return kept(own)
    # A loop that starts from a constant and adds only values that fit it.
    constant = next((value for value in walked if value in graph.constants), None)
    if constant is None:
        return Blame(None)
    return Blame(None, Equation("constant", (), graph.constants[constant]), True, constant)


def _is_widening(region: Region, value: int) -> bool:
    """Whether a value is one of a narrower dtype that met a wider one."""
    if not _is_implicit_cast(region, value):
        return False
    graph = region.graph
    (old, *_), new = graph.made_by[value].inputs, value
    is_same = graph.avals[old].dtype == graph.avals[new].dtype
    return not is_same and kind_of(graph, old) == kind_of(graph, new)


def _is_implicit_cast(region: Region, value: int) -> bool:
    equation = region.graph.made_by.get(value)
    # `arange` and its like make the property from nothing, which is not a cast.
    if equation is None or equation.primitive != "convert_element_type":
        return False
    return not region.forcing(equation) and not Written(equation.stack).is_explicit
