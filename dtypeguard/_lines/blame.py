"""Walks back from a value that drifted to the equation that made it drift."""

import operator
from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple

from .._leaves.dtypes import is_weak, kind
from .._leaves.types import Aval
from .._program.graph import PRODUCTS, SHAPES, Equation, Graph
from .equations import Written

# Whether an abstract value has a property: a dtype, say, or a shape.
Matches = Callable[[Aval], bool]

_RETYPING = SHAPES | {"convert_element_type"}

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


class _Region:
    """The values that have a property, and the walk back through them.

    Attributes:
        graph: of the program.
        matches: whether an abstract value has the property.
        roots: what `_root` found where its walk went on from one value alone.
    """

    def __init__(self, graph: Graph, matches: Matches):
        self.graph = graph
        self.matches = matches
        self.roots: dict[int, Blame] = {}
        self._behind: dict[int, list[int]] = {}

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
            if self.has(value) or _kind(graph, value) not in kinds:
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
    region = _region(graph, matches)
    kinds = {_kind(graph, value) for value in graph.inputs if leaves >> value & 1}
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
        root = _root(region, partners, user)
        return root._replace(promotion=equation, between=partners)
    # The output no longer depends on the leaf: something replaced it.
    made = next((graph.made_by[value] for value in walked if value in graph.made_by), None)
    root = _root(region, [output])
    cause = None if root.cause is made else root.cause
    return root._replace(promotion=made, cause=cause)


def _kind(graph: Graph, value: int) -> str | None:
    return kind(getattr(graph.avals[value], "dtype", None))


def source(graph: Graph, output: int, matches: Matches) -> Equation | None:
    """The equation that first gave an output a property."""
    return _root(_region(graph, matches), [output]).cause


def promotions(graph: Graph, starts: Sequence[int], matches: Matches) -> Iterator[Equation]:
    """Where what is behind some values met a wider operand, nearest first."""
    region = _region(graph, matches)
    for value, _ in region.to_root(starts):
        if _is_implicit_cast(region, value):
            yield graph.made_by[value]


def nearest_input(graph: Graph, output: int, matches: Matches) -> int | None:
    """The input nearest to an output of all through which that has a property."""
    region = _region(graph, matches)
    return next((value for value in region.walk(output) if value < len(graph.inputs)), None)


def _region(graph: Graph, matches: Matches) -> _Region:
    """The region of a property, one for all values of a graph that are asked about."""
    return graph.regions.setdefault(matches, _Region(graph, matches))


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
    if equation.primitive not in PRODUCTS:
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
    if equation.primitive in PRODUCTS:
        return equation, region.forcing(equation)
    # A function of JAX may convert its arguments, and compute with each before they meet.
    same_kind = _kind(graph, promoted) in {_kind(graph, value) for value in equation.inputs}
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


def _root(region: _Region, starts: list[int], user: Equation | None = None) -> Blame:
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


def _is_implicit_cast(region: _Region, value: int) -> bool:
    equation = region.graph.made_by.get(value)
    # `arange` and its like make the property from nothing, which is not a cast.
    if equation is None or equation.primitive != "convert_element_type":
        return False
    return not region.forcing(equation) and not Written(equation.stack).is_explicit
