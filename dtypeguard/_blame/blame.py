"""Walks back from a value of a program to the equation that gave it a property."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from .._leaves.dtypes import is_weak, kind
from .._leaves.types import Aval
from .._program.graph import Equation, Graph
from .._program.jaxprs import PRODUCTS, SHAPES
from .._tracebacks.written import Written

# Whether an abstract value has a property: a dtype, say, or a shape.
Matches = Callable[[Aval], bool]


class Blame(NamedTuple):
    """The equations that gave a value its property.

    Attributes:
        promotion: the equation that gave it to the leaf; None if there is none.
        cause: the equation that made the operand which forced the promotion. For a
            constant operand, the equation that uses it first. None if nothing forced it,
            or an input did.
        operand: the operand in the graph, if it is an input or a constant: a literal, or
            closed over.
    """

    promotion: Equation | None
    cause: Equation | None = None
    operand: int | None = None


class Region:
    """The values that have a property, and the walk back through them."""

    def __init__(self, graph: Graph, matches: Matches):
        self.graph, self.matches = graph, matches
        # What `root` found where its walk went on from one value alone, and whether that
        # holds whatever it has found before.
        self._roots: dict[int, tuple[Blame, bool]] = {}
        # By the leaves of `blame`, the values behind which it found no promotion.
        self.unpromoted: dict[int, set[int]] = {}

    def has(self, value: int) -> bool:
        return self.matches(self.graph.avals[value])

    def forcing(self, equation: Equation) -> list[int]:
        """The operands that impose the property on others: a Python scalar does not."""
        graph = self.graph
        is_scalar = lambda value: value in graph.constants and is_weak(graph.avals[value])
        return [x for x in equation.inputs if self.has(x) and not is_scalar(x)]

    def behind(self, value: int) -> Sequence[int]:
        """The values from which a value may have the property."""
        equation = self.graph.made_by.get(value)
        return self.forcing(equation) if equation else self.graph.same.get(value, ())

    def walk(self, start: int, known: Collection[int] = ()) -> Iterator[int]:
        """The values of the region behind one of them, nearest first.

        It ends at equations whose results are `known`.
        """
        seen, queue = {start}, [start]
        for value in queue:
            yield value
            if value not in known or value not in self.graph.made_by:
                new = dict.fromkeys(self.behind(value))
                queue += [source for source in new if source not in seen]
                seen.update(new)

    def narrow_inputs(self, value: int) -> list[int]:
        """The operands without the property, of an equation that introduces it."""
        graph, equation = self.graph, self.graph.made_by.get(value)
        if equation is None:
            return []
        # Others than products convert their operands by equations of their own.
        if self.forcing(equation) and equation.primitive not in PRODUCTS:
            return []
        return [x for x in equation.inputs if not self.has(x) and x not in graph.constants]

    def partners(self, promoted: int, walked: Sequence[int]) -> Sequence[int]:
        """The operands that forced a promotion, where its value meets them.

        What was `walked` of the region is nearer to its output.
        """
        graph, mine = self.graph, {promoted}
        for value in reversed(walked):
            equation = graph.made_by.get(value)
            inputs = equation.inputs if equation else graph.same.get(value, ())
            if value != promoted and mine.isdisjoint(inputs):
                continue
            others = self.forcing(equation) if equation else []
            others = [x for x in others if x not in mine and not self.is_implicit_cast(x)]
            if others:
                return _strong_operands(graph, others)
            if equation is None or equation.primitive in SHAPES:
                mine.add(value)
        return []

    def root(self, starts: Sequence[int]) -> Blame:
        """The equation from which some values have the property, as a cause.

        For a constant that is the equation that uses it; for an input, None.
        """
        graph, queue, seen = self.graph, list(starts), {*starts}
        found, is_sure, passed = None, False, dict[int, bool]()
        for number, value in enumerate(queue):
            if number + 1 == len(queue):  # it goes on from it alone
                if value in self._roots:
                    known, is_sure = self._roots[value]
                    found = known if is_sure else found or known
                    break
                passed[value] = found is None
            if value < len(graph.inputs):
                found, is_sure = Blame(None, operand=value), True
                break
            begun = self._begun(value, queue, number)
            if begun is not None and begun.cause is not None:
                found = found or begun
                # What a function of JAX converts by itself follows what it was given.
                if Written(begun.cause.stack).is_of_users:
                    found, is_sure = begun, True
                    break
            behind = dict.fromkeys(_strong_operands(graph, self.behind(value)))
            queue += [source for source in behind if source not in seen]
            seen.update(behind)
        # A loop may start from a constant and add only values that fit it.
        constant = next((value for value in queue if value in graph.constants), None)
        if found is None and constant is not None:
            used = Equation("constant", (), graph.constants[constant])
            found = Blame(None, used, constant)
        found = found or Blame(None)
        alone = (x for x, is_first in passed.items() if is_first or is_sure)
        self._roots.update(dict.fromkeys(alone, (found, is_sure)))
        return found

    def _begun(self, value: int, queue: Sequence[int], number: int) -> Blame | None:
        """The equation of a value as a cause, if the property begins there."""
        constants, equation = self.graph.constants, self.graph.made_by.get(value)
        behind = _strong_operands(self.graph, self.behind(value))
        if equation and not behind:
            is_cast = self.is_implicit_cast(value)
            is_forced = is_cast and self.partners(value, queue[: number + 1])
            return None if is_forced else Blame(None, equation)
        # A constant adds nothing to operands that have the property anyway.
        others = [x for x in behind if x not in constants]
        if equation and others != [*behind] and all(map(self.is_implicit_cast, others)):
            constant = next(x for x in behind if x in constants)
            return Blame(None, equation, constant)
        return None

    def is_implicit_cast(self, value: int) -> bool:
        """Whether a function of JAX converts a value to the property by itself."""
        equation = self.graph.made_by.get(value)
        # `arange` and its like make the property from nothing, which is not a cast.
        if equation is None or equation.primitive != "convert_element_type":
            return False
        return not self.forcing(equation) and not Written(equation.stack).is_explicit


def _strong_operands(graph: Graph, values: Sequence[int]) -> Sequence[int]:
    """Those that decide a type: weak ones give way."""
    return [value for value in values if not is_weak(graph.avals[value])] or values


def blame(graph: Graph, output: int, matches: Matches, leaves: int) -> Blame:
    """Finds what gave an output a property that the leaf it continues did not have.

    The leaf are some inputs, as the bits of an integer. The promotion is the equation
    nearest to the output that depends on them, has an operand without the property, and
    gives a result with it. The walk stops where the property is lost: an earlier promotion
    that was undone is not to blame.
    """
    region, walked, promoted = region_of(graph, matches), list[int](), 0
    known = region.unpromoted.setdefault(leaves, set())
    kinds = {kind_of(graph, value) for value in graph.inputs if leaves >> value & 1}
    for value in region.walk(output, known):
        walked.append(value)
        narrow = region.narrow_inputs(value)
        narrow = [x for x in narrow if graph.dependencies(x) & leaves]
        # A mask or a count of the leaf is to blame only if nothing else is.
        is_alike = any(kind_of(graph, x) in kinds for x in narrow)
        if narrow and (is_alike or not promoted):
            promoted = len(walked)
        if is_alike:
            break
    if promoted:
        value = walked[promoted - 1]
        equation = graph.made_by[value]
        partners = region.partners(value, walked[:promoted])
        if not partners or Written(equation.stack).is_explicit:
            return Blame(equation)
        return region.root(partners)._replace(promotion=equation)
    known.update(walked)
    # The output no longer depends on the leaf: something replaced it.
    made = next((graph.made_by[value] for value in walked if value in graph.made_by), None)
    root = region.root([output])
    return root._replace(promotion=made, cause=None if root.cause is made else root.cause)


def region_of(graph: Graph, matches: Matches) -> Region:
    """The region of a property, one for all values of a graph that are asked about."""
    return graph.regions.setdefault(matches, Region(graph, matches))


def kind_of(graph: Graph, value: int) -> str | None:
    return kind(getattr(graph.avals[value], "dtype", None))
