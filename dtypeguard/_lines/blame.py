"""Walks back from a value of a program to the equation that gave it a property."""

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
    """The equations that gave a value its property.

    Attributes:
        promotion: the equation that gave it to the leaf; None if there is none.
        cause: the equation that made the operand which forced the promotion. For a
            constant operand, the equation that uses it first. None if nothing forced it,
            or an input did.
        constant: whether the operand is a constant: a literal, or closed over.
        operand: the operand in the graph, if it is a constant or an input.
    """

    promotion: Equation | None
    cause: Equation | None = None
    constant: bool = False
    operand: int | None = None


class Region:
    """The values that have a property, and the walk back through them."""

    def __init__(self, graph: Graph, matches: Matches):
        self.graph, self.matches = graph, matches
        # What `root` found where its walk went on from one value alone.
        self._roots: dict[int, Blame] = {}
        self._behind: dict[int, list[int]] = {}

    def has(self, value: int) -> bool:
        return self.matches(self.graph.avals[value])

    def forcing(self, equation: Equation) -> list[int]:
        """The operands that impose the property on others: a Python scalar does not."""
        graph = self.graph
        is_scalar = lambda value: value in graph.constants and is_weak(graph.avals[value])
        return [x for x in equation.inputs if self.has(x) and not is_scalar(x)]

    def behind(self, value: int) -> list[int]:
        """The values that decide that a value has the property: weak types give way."""
        if value not in self._behind:
            equation = self.graph.made_by.get(value)
            same = list(self.graph.same.get(value, ()))
            self._behind[value] = self._strong(self.forcing(equation)) if equation else same
        return self._behind[value]

    def walk(self, start: int) -> Iterator[int]:
        """The values of the region behind one of them, nearest first."""
        seen, queue = {start}, [start]
        for value in queue:
            yield value
            equation = self.graph.made_by.get(value)
            same = self.graph.same.get(value, ())
            behind = self.forcing(equation) if equation else same
            queue += [source for source in behind if source not in seen]
            seen.update(behind)

    def narrow_inputs(self, value: int) -> list[int]:
        """The operands without the property, of an equation that introduces it."""
        graph, equation = self.graph, self.graph.made_by.get(value)
        inputs = equation.inputs if equation else ()
        narrow = [x for x in inputs if not self.has(x) and x not in graph.constants]
        if equation is None or not self.forcing(equation):
            return narrow
        if equation.primitive not in PRODUCTS:
            return []  # a predicate, an index, an integer exponent
        return [x for x in narrow if kind_of(graph, x) == kind_of(graph, value)]

    def continues(self, value: int, leaves: int, kinds: Container[str | None]) -> bool:
        """Whether a value is computed from some inputs outside of the region.

        Args:
            value: where the walk starts.
            leaves: the inputs, as the bits of an integer.
            kinds: of dtypes that the values between may have.
        """
        graph, queue, seen = self.graph, [value], {value}
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

    def partners(
        self, promoted: int, walked: Sequence[int]
    ) -> tuple[Equation | None, list[int]]:
        """The equation that a promotion serves, and its operands that forced that.

        Args:
            promoted: the value that the promotion gave the property.
            walked: the values of the region that are nearer to its output.
        """
        graph, mine, size = self.graph, {promoted}, 0
        equation = graph.made_by[promoted]
        if equation.primitive in PRODUCTS:
            return equation, self.forcing(equation)
        while size < len(mine):
            size = len(mine)
            for value in reversed(walked):
                user = graph.made_by.get(value)
                if user is None:
                    is_mine = mine & {*graph.same.get(value, ())}
                elif is_mine := mine & {*user.inputs}:
                    others = [x for x in self.forcing(user) if x not in mine]
                    others = [x for x in others if not self.is_implicit_cast(x)]
                    if others:
                        return user, self._strong(others)
                    is_mine = user.primitive in SHAPES
                mine |= {value} if is_mine else set()
        return None, []

    def root(self, starts: Sequence[int], user: Equation | None = None) -> Blame:
        """The equation from which some values have the property, as a cause.

        For a constant that is the equation that uses it; for an input, None.
        """
        graph = self.graph
        if user is not None and graph.constants.keys() >= {*starts}:
            return Blame(None, user, True, starts[0])
        queue, seen, passed = list(starts), {*starts}, list[int]()
        known, own = None, None
        for number, value in enumerate(queue):
            if own is None and number + 1 == len(queue):  # the walk goes on from it alone
                known = self._roots.get(value)
                passed.append(value)
            if known is None and value < len(graph.inputs):
                known = Blame(None, operand=value)
            if known is not None:
                break
            found = self._made(value, queue, number)
            equation = graph.made_by.get(value)
            if found is not None and equation is not None:
                written = Written(equation.stack)
                # A gradient begins with a 1 of the loss's type, which forces nothing, and
                # a cast to the dtype of another value follows that.
                is_seed = found.constant and written.is_backward
                follows = is_seed or written.names_another_dtype
                if written.is_of_users and not follows:
                    known = found
                    break
                # What a function of JAX converts by itself follows what it was given.
                own = own or found
            behind = self.behind(value)
            queue += [source for source in behind if source not in seen]
            seen.update(behind)
        # A loop may start from a constant and add only values that fit it.
        constant = next((value for value in queue if value in graph.constants), None)
        if (found := known or own) is not None:
            self._roots.update(dict.fromkeys(passed, found))
            return found
        if constant is None:
            return Blame(None)
        made = Equation("constant", (), graph.constants[constant])
        return Blame(None, made, True, constant)

    def _made(self, value: int, queue: Sequence[int], number: int) -> Blame | None:
        """The equation of a value as a cause, if the property begins there.

        Args:
            value: of a walk.
            queue: the values of the walk.
            number: how many of them come before this one.
        """
        graph = self.graph
        equation = graph.made_by.get(value)
        if equation is None:
            return None
        forcing = self.behind(value)
        variables = [source for source in forcing if source not in graph.constants]
        if not forcing:
            is_cast = self.is_implicit_cast(value)
            is_forced = is_cast and self.partners(value, queue[: number + 1])[1]
            return None if is_forced else Blame(None, equation)
        # A constant adds nothing to operands that have the property anyway.
        is_forced = len(variables) < len(forcing)
        if is_forced and all(map(self.is_implicit_cast, variables)):
            constant = next(each for each in forcing if each in graph.constants)
            return Blame(None, equation, True, constant)
        return None

    def is_implicit_cast(self, value: int) -> bool:
        """Whether a function of JAX converts a value to the property by itself."""
        equation = self.graph.made_by.get(value)
        # `arange` and its like make the property from nothing, which is not a cast.
        if equation is None or equation.primitive != "convert_element_type":
            return False
        return not self.forcing(equation) and not Written(equation.stack).is_explicit

    def _strong(self, values: Sequence[int]) -> list[int]:
        return [value for value in values if not self._is_weakly(value)] or list(values)

    def _is_weakly(self, value: int) -> bool:
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
    walked, best, sure = list[int](), 0, -1
    for value in region.walk(output):
        walked.append(value)
        narrow = region.narrow_inputs(value)
        narrow = [each for each in narrow if graph.dependencies(each) & leaves]
        if not narrow:
            continue
        # What was made from the leaf when that was promoted already is not to blame, and a
        # mask or a count only if nothing else is.
        is_so = (any(region.continues(x, leaves, y) for x in narrow) for y in (kinds, _ANY))
        how = next((2 - n for n, continues in enumerate(is_so) if continues), 0)
        best, sure = (len(walked), how) if how > sure else (best, sure)
        if sure == 2:
            break
    if sure >= 0:
        equation = graph.made_by[walked[best - 1]]
        user, partners = region.partners(walked[best - 1], walked[:best])
        written = Written(equation.stack)
        is_cast = written.is_explicit and not written.names_another_dtype
        if not partners or is_cast:
            return Blame(equation)
        return region.root(partners, user)._replace(promotion=equation)
    # The output no longer depends on the leaf: something replaced it.
    made = next((graph.made_by[value] for value in walked if value in graph.made_by), None)
    root = region.root([output])
    return root._replace(promotion=made, cause=None if root.cause is made else root.cause)


def source(graph: Graph, output: int, matches: Matches) -> Equation | None:
    """The equation that first gave an output a property."""
    return region_of(graph, matches).root([output]).cause


def nearest_input(graph: Graph, output: int, matches: Matches) -> int | None:
    """The input nearest to an output of all through which that has a property."""
    region = region_of(graph, matches)
    return next((value for value in region.walk(output) if value < len(graph.inputs)), None)


def region_of(graph: Graph, matches: Matches) -> Region:
    """The region of a property, one for all values of a graph that are asked about."""
    return graph.regions.setdefault(matches, Region(graph, matches))


def kind_of(graph: Graph, value: int) -> str | None:
    return kind(getattr(graph.avals[value], "dtype", None))
