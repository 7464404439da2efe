"""A program as one graph of values, to be walked backwards."""

import collections
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from .._leaves.types import Aval, Jaxpr, Leaf
from .jaxprs import Variable, is_literal
from .program import Block, Node, User
from .walk import Walk

# With so many values, calls stay closed: functions that call each other twice, level by
# level, would fill the memory, and JAX traces each of them once.
_MOST_VALUES = 100_000


class Graph(Walk[int]):
    """The values of a program, numbered, with calls and loops resolved.

    A value that leaves a `jit`, a loop or a branch has another number on the other side.
    Each call of a jitted function has values of its own, so that a walk leaves it where it
    came in.

    Attributes:
        inputs: the values of the arguments, which come first.
        outputs: the values that are returned.
        variables: the variable, or the literal, of each.
        avals: the abstract value of each.
        made_by: the node of each. Inputs, constants and values that cross a boundary have
            none.
        constants: its literals and closed-over values, with who uses each first.

    Args:
        program: a jaxpr, or a block.
        arguments: how many arguments it has, if it begins with what it closes over.
    """

    # They make none of the values that come round.
    has_conditions = False

    def __init__(self, program: Jaxpr | Block, arguments: int = sys.maxsize):
        self.variables: list[Variable] = []
        self.avals: list[Aval] = []
        self.made_by: dict[int, Node] = {}
        self.constants: dict[int, User] = {}
        self._sources: list[list[int]] = []
        block = program
        if not isinstance(block, Block):
            block = Block(program)
        # JAX puts what a function closes over first.
        first = max(len(block.arguments) - arguments, 0)
        self.inputs: list[int] = []
        for var in block.arguments[first:]:
            value = self.new(var)
            self.inputs.append(value)
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
        return self._sources[value]

    def origins(self, value: int) -> list[int]:
        """Returns the values that a value may be, past calls, loops and branches."""

        def across(value):
            if value in self.made_by:
                return ()
            return self.sources(value)

        origins = []
        for source in self.behind([value], across):
            if not across(source):
                origins.append(source)
        return origins

    def array(self, value: int) -> Leaf | None:
        """Returns the number or array that a constant is, if the jaxpr holds that."""
        user = self.constants[value]
        return user.block.constant(self.variables[value])

    @functools.cached_property
    def dependencies(self) -> dict[int, int]:
        """The inputs that each value depends on, as the bits of an integer."""
        dependencies = collections.defaultdict(int)
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

    def new(self, var: Variable, sources: Iterable[int] = ()) -> int:
        """Returns the number of a new value."""
        value = len(self.avals)
        self.variables.append(var)
        self.avals.append(var.aval)
        self._sources.append(list(sources))
        return value

    def enter(self, block, arguments):
        values = {}
        # A closed-over value gets its number where it is used first.
        for var, value in zip(reversed(block.arguments), reversed(arguments)):
            if self.avals[value] != var.aval:
                # The body of a `scan` sees slices.
                value = self.new(var, [value])
            values[var] = value
        return values

    def read(self, user, place, var, values):
        is_number = is_literal(var)
        if not is_number and var in values:
            return values[var]
        value = self.new(var)
        self.constants[value] = user
        if not is_number:
            values[var] = value
        return value

    def node(self, node, operands):
        try:
            return super().node(node, operands)
        except Exception:  # the parameters differ in this release of JAX
            return self.computed(node, operands)

    def computed(self, node, operands):
        results = []
        for var in node.eqn.outvars:
            value = self.new(var, operands)
            self.made_by[value] = node
            results.append(value)
        return results

    visit_custom_linear_solve = computed

    def crossing(self, value, var):
        # Behind its source, in the order of the program.
        return self.new(var, [value])

    def joined(self, values, attempt):
        value, *sources = values
        if not attempt:
            return self.new(self.variables[value], values)
        # The carry comes round again.
        self._sources[value].extend(sources)
        return value

    def visit_call(self, node, operands):
        if len(self.avals) > _MOST_VALUES:
            return self.computed(node, operands)
        results = self.block(node.inner[0], operands)
        return self.left(node, results)
