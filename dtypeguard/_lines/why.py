"""The lines behind the type of a value of a program: the one walk, and where it ends.

`why` walks back by `blame.py`, which names equations. What lies beyond the program it asks
its `Ends`, and those the record: a constant, which has no line in a jaxpr, and what the
program was given.
"""

from collections.abc import Callable
from typing import NamedTuple

from .._leaves.dtypes import is_python_number, is_weak
from .._leaves.types import Aval
from .._program.graph import Equation, Graph
from .._program.trace import Program
from .._source.origin import Origin, Why
from .blame import Matches, blame, region_of
from .equations import Written
from .record import of_number, read_on, recorded


class Ends:
    """What is known beyond a program, by the record alone. None where it is not known."""

    def result(self, graph: Graph, constant: int) -> Why:
        """The lines behind a constant of the graph."""
        lines = recorded(graph.variables.get(constant))
        return lines if lines.origin else recorded(graph.values.get(constant))

    def given(self, graph: Graph, number: int) -> Why:
        """The lines behind an input of the graph, by its number."""
        return recorded(graph.variables.get(graph.inputs[number]))


def why(graph: Graph, output: int, matches: Matches, leaves: int, ends: Ends) -> Why:
    """The lines that gave an output of a program a property.

    Args:
        graph: of the program.
        output: the value.
        matches: whether an abstract value has the property, the new dtype for example.
        leaves: the inputs that the output continues, as the bits of an integer.
        ends: knows what lies beyond the program.
    """
    if output in graph.constants:
        return ends.result(graph, output)
    if output in graph.inputs and leaves >> (number := graph.inputs.index(output)) & 1:
        return ends.given(graph, number)
    found = blame(graph, output, matches, leaves)
    promotion, root = found.promotion, found.cause or found.promotion
    origin, cause, line = line_of(promotion), line_of(found.cause), line_of(root)
    if found.constant and line is not None:
        made = None if found.operand is None else ends.result(graph, found.operand).root
        made = made or read_on(line.users, matches) or line
        cause = made if cause or made.users != line.users else None
    elif cause is None and found.operand in graph.inputs:
        cause = ends.given(graph, graph.inputs.index(found.operand)).root
    operands = promotion.inputs if promotion else ()
    is_promoted = not all(matches(graph.avals[each]) for each in operands)
    return Why(origin, cause, is_promoted=is_promoted)


class Has(NamedTuple):
    """Whether an abstract value has this dtype or shape."""

    name: str
    value: object

    def __call__(self, aval: Aval) -> bool:
        return getattr(aval, self.name, None) == self.value


def line_of(equation: Equation | None) -> Origin | None:
    """The line of an equation, if there is one."""
    return None if equation is None else Written(equation.stack).origin


class ProgramLines(Ends):
    """Finds the lines of source behind the values of a program.

    Args:
        program: the traced program.
        begun: finds the line that made an input of the step, by its number.
    """

    def __init__(
        self, program: Program, begun: Callable[[int], Origin | None] = lambda _: None
    ):
        self._program, self._begun = program, begun

    def of(self, output: int, matches: Matches, leaves: int) -> Why:
        """The lines that gave an output of the step a property, as `why` finds them."""
        return why(self._program.step, output, matches, leaves, self)

    def given(self, graph: Graph, number: int) -> Why:
        return Why(self._begun(number))

    def of_weak_leaf(self, number: int) -> Why:
        """The line that made a leaf of the first carry weak."""
        first = self._program.first
        root = first and region_of(first, is_weak).root([first.outputs[number]])
        made = root and line_of(root.cause)
        if made is not None:
            return Why(made)
        leaves = [leaf for tree in self._program.carried for leaf in tree.arrays]
        leaf = leaves[number]
        known = of_number("", leaf) if is_python_number(leaf) else recorded(leaf).root
        return Why(known)
