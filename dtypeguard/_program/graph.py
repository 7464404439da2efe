"""A program as one graph of values, to be walked backwards."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from .._leaves.types import Aval, Jaxpr, Leaf
from .jaxprs import Stack, Variable, is_literal
from .program import Block, User
from .walk import Walk

# With so many values, calls stay closed: functions that call each other twice, level by
# level, would fill the memory, and JAX traces each of them once.
_MOST_VALUES = 100_000


class Equation(NamedTuple):
    """An equation of a program that computes something itself.

    Attributes:
        primitive: its name.
        inputs: the values that it is made of.
        stack: JAX's equation, then those whose jaxprs contain it, inside out.
        number: that of its node.
        first: the first of its results, which follow each other.
    """

    primitive: str
    inputs: Sequence[int]
    stack: Stack
    number: int = -1
    first: int = -1


@dataclasses.dataclass(frozen=True)
class Constant:
    """A literal or a closed-over value.

    Attributes:
        variable: its variable, or the literal.
        user: the first equation that uses it, or the block that returns it.
    """

    variable: Variable
    user: User

    @property
    def value(self) -> Leaf | None:
        """Its number or array, if the jaxpr holds that."""
        return self.user.block.constant(self.variable)

    @property
    def returned_by(self) -> Jaxpr | None:
        """The jaxpr of the function inside that returns it: no equation has its line."""
        block = self.user
        if not isinstance(block, Block):
            return None
        # What the program itself returns, no function inside returns.
        if not block.stack:
            return None
        return block.source


class Graph(Walk[int]):
    """The values of a program, numbered, with calls and loops resolved.

    A value that leaves a `jit`, a loop or a branch has another number on the other side,
    and an entry in `same`. Each call of a jitted function has values of its own, so that a
    walk leaves it where it came in.

    Attributes:
        inputs: the values of the arguments, which come first.
        outputs: the values that are returned.
        avals: the abstract value of each.
        made_by: the equation of each. Inputs, constants and values that cross a boundary
            have none.
        same: the values that one may be.
        constants: its literals and closed-over values.
        variables: those of the inputs.

    Args:
        program: a jaxpr, or a block.
        arguments: how many arguments it has, if it begins with what it closes over.
    """

    def __init__(self, program: Jaxpr | Block, arguments: int | None = None):
        self.avals: list[Aval] = []
        self.made_by: dict[int, Equation] = {}
        self.same: dict[int, list[int]] = {}
        self.constants: dict[int, Constant] = {}
        block = program
        if not isinstance(block, Block):
            block = Block(program)
        variables = block.arguments
        if arguments is not None:
            # JAX puts what a function closes over first.
            first = max(len(variables) - arguments, 0)
            variables = variables[first:]
        self.variables = {}
        for variable in variables:
            value = self._new(variable.aval)
            self.variables[value] = variable
        self.inputs = list(self.variables)
        self.outputs = self.block(block, self.inputs)

    # What it tells

    def behind(
        self, starts: Iterable[int], sources: Callable[[int], Iterable[int]]
    ) -> Iterator[int]:
        """Yields some values and those behind them, nearest first.

        Args:
            starts: the values.
            sources: returns the values from which it goes on, of each value.
        """
        waiting = list(starts)
        seen = set(waiting)
        for value in waiting:  # which grows
            yield value
            for source in sources(value):
                if source in seen:
                    continue
                seen.add(source)
                waiting.append(source)

    def sources(self, value: int) -> Sequence[int]:
        """Returns the values that one is made of, or may be."""
        equation = self.made_by.get(value)
        if equation is None:
            return self.same_as(value)
        return equation.inputs

    def same_as(self, value: int) -> Sequence[int]:
        """Returns the sources of a value that crosses a boundary."""
        return self.same.get(value, ())

    def origins(self, value: int) -> list[int]:
        """Returns the values that a value may be, past calls, loops and branches."""
        origins = []
        for source in self.behind([value], self.same_as):
            if source in self.same:
                continue
            origins.append(source)
        return origins

    @functools.cached_property
    def dependencies(self) -> dict[int, int]:
        """The inputs that each value depends on, as the bits of an integer."""
        dependencies = collections.defaultdict[int, int](int)
        for value in self.inputs:
            dependencies[value] = 1 << value
        before = {}
        while dependencies != before:  # a second pass only where a loop feeds values back
            before = dict(dependencies)
            for value in range(len(self.avals)):  # sources come first
                for source in self.sources(value):
                    dependencies[value] |= dependencies[source]
        return dependencies

    # How it is made

    def _new(self, aval: Aval, sources: Sequence[int] = ()) -> int:
        value = len(self.avals)
        self.avals.append(aval)
        if sources:
            self.same[value] = list(sources)
        return value

    def enter(self, block, arguments):
        values = {}
        # A closed-over value gets its number where it is used first.
        first = len(block.arguments) - len(arguments)
        for var, value in zip(block.arguments[first:], arguments):
            if self.avals[value] != var.aval:
                # The body of a `scan` sees slices.
                value = self._new(var.aval, [value])
            values[var] = value
        return values

    def read(self, user, place, var, values):
        is_number = is_literal(var)
        if not is_number and var in values:
            return values[var]
        value = self._new(var.aval)
        self.constants[value] = Constant(var, user)
        if not is_number:
            values[var] = value
        return value

    def node(self, node, operands):
        try:
            return super().node(node, operands)
        except Exception:  # the parameters differ in this release of JAX
            return self.computed(node, operands)

    def computed(self, node, operands):
        first = len(self.avals)
        equation = Equation(node.name, operands, node.stack, node.number, first)
        results = []
        for var in node.eqn.outvars:
            value = self._new(var.aval)
            self.made_by[value] = equation
            results.append(value)
        return results

    visit_custom_linear_solve = computed

    def crossing(self, value, aval):
        # Behind its source, in the order of the program.
        return self._new(aval, [value])

    def joined(self, values, attempt):
        value, *sources = values
        if not attempt:
            return self._new(self.avals[value], values)
        # The carry comes round again.
        self.same[value].extend(sources)
        return value

    def visit_call(self, node, operands):
        if len(self.avals) > _MOST_VALUES:
            return self.computed(node, operands)
        results = self.block(node.inner[0], operands)
        return self.left(node, results)

    def condition(self, block, arguments):
        # It tells how often the values come round, and makes none of them.
        pass
