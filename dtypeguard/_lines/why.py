"""The lines behind the type of a value of a program: the one walk, and where it ends.

`why` walks back by `blame.py`, which names equations. What lies beyond the program it asks
its `Ends`, and those the record: a constant, which has no line in a jaxpr; what the program
was given; the array that `zeros_like` was to be like. `lines.py` has the ends of a program,
`provenance.py` those of a trace that has raised an error.
"""

import dataclasses
from typing import NamedTuple

from .._leaves.types import Aval
from .._program.graph import Equation, Graph
from .._source.files import is_installed
from .._source.origin import Origin, Why
from .blame import Blame, blame, equations_behind
from .equations import Written
from .record import of_variable, read_on, recorded
from .region import Matches, kind_of, nearest_input


class Ends:
    """What is known beyond a program, by the record alone. None where it is not known."""

    def result(self, graph: Graph, constant: int) -> Why:
        """The lines behind a constant of the graph."""
        lines = of_variable(graph.variables.get(constant))
        return lines if lines.origin else recorded(graph.values.get(constant))

    def given(self, number: int) -> Why:
        """The lines behind an input, by its number."""
        return Why()

    def constant(
        self, graph: Graph, found: Blame, line: Origin, matches: Matches
    ) -> Origin | None:
        """The line that made the constant which an equation on a line uses."""
        if found.operand is None:
            return line
        made = self.result(graph, found.operand).root
        return made or read_on(line.users, matches) or line

    def model(self, line: Origin, matches: Matches) -> Origin | None:
        """The line that made the `x` of a `zeros_like(x)` on a line."""
        return read_on(line.users, matches)

    def undisplaced(self, graph: Graph) -> Graph:
        """The graph with lines of their own for a user's rules, if it can be had."""
        return graph


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
        return ends.given(number)
    found = blame(graph, output, matches, leaves)
    if any(Written(each.stack).is_displaced for each in found[:2] if each is not None):
        number = graph.outputs.index(output)
        graph = ends.undisplaced(graph)
        output = graph.outputs[number]
        found = blame(graph, output, matches, leaves)
    promotion, root = found.promotion, found.cause or found.promotion
    origin, cause, line = line_of(promotion), line_of(found.cause), line_of(root)
    nearest: int | None = None
    if found.constant and line is not None:
        made = ends.constant(graph, found, line, matches)
        cause = made if cause or (made and made.users != line.users) else None
    elif cause is None and found.operand in graph.inputs:
        nearest = found.operand
    if root is not None and line is not None and Written(root.stack).is_like:
        cause = ends.model(line, matches) or cause
    if cause is not None and is_installed(cause.users.file):
        # An argument of the user's may force it as well.
        nearest = nearest_input(graph, output, matches)
    if nearest is not None:
        cause = ends.given(graph.inputs.index(nearest)).root or cause
    if origin is not None and is_installed(origin.file):
        cause = _nearest_own(graph, found, matches, origin, cause)
    elif origin is not None and cause is not None and not found.constant:
        cause = _left_wide(graph, found, matches, origin, cause)
    operands = promotion.inputs if promotion else ()
    is_promoted = not all(matches(graph.avals[each]) for each in operands)
    return Why(origin, cause, is_promoted=is_promoted)


def _nearest_own(
    graph: Graph, found: Blame, matches: Matches, origin: Origin, cause: Origin | None
) -> Origin | None:
    """The user's own line that promoted what a package promotes others with.

    Args:
        graph: of the program.
        found: what forced the promotion in the package.
        matches: whether an abstract value has the property.
        origin: the line of the package.
        cause: the line that forced it in the end, which is returned if there is no other.
    """
    for equation in equations_behind(graph, found.between, matches, is_promotion=True):
        written = Written(equation.stack)
        line = None if written.is_backward else written.origin
        if line is not None and not is_installed(line.file):
            is_known = line in (origin.users, cause and cause.users)
            return cause if is_known else dataclasses.replace(line, behind=cause)
    return cause


# What is computed in float32 on purpose, such as the mean of a norm.
_PRECISE = {"reduce_sum", "reduce_max", "rsqrt", "sqrt", "exp", "log", "logistic"}


def _left_wide(
    graph: Graph, found: Blame, matches: Matches, origin: Origin, cause: Origin
) -> Origin:
    """The line on which a function that computes in a wider dtype returns that.

    Such as a norm in float32 whose result is not cast back.

    Args:
        graph: of the program.
        found: what forced the promotion.
        matches: whether an abstract value has the property.
        origin: the line of the promotion.
        cause: the cast, which is returned if it is in the same function.
    """
    inside = cause.file, cause.function
    cast = found.cause if found.cause and Written(found.cause.stack).is_explicit else None
    kinds = {kind_of(graph, x) for x in cast.inputs} if cast else set()
    if kinds != {"float"} or is_installed(cause.file):
        return cause
    # One that is written in it computes with what it has, and returns nothing to it.
    if cause.file == origin.file and origin.function.startswith(cause.function):
        return cause
    behind = [*equations_behind(graph, found.between, matches)]
    if _PRECISE.isdisjoint(each.primitive for each in behind):
        return cause
    for equation in behind:
        line = Written(equation.stack).origin
        if line is not None and inside == (line.file, line.function):
            is_same = line.line == cause.line
            return cause if is_same else dataclasses.replace(line, behind=cause)
    return cause


class Has(NamedTuple):
    """Whether an abstract value has this dtype or shape."""

    name: str
    value: object

    def __call__(self, aval: Aval) -> bool:
        return getattr(aval, self.name, None) == self.value


def line_of(equation: Equation | None) -> Origin | None:
    """The line of an equation, if there is one."""
    return None if equation is None else Written(equation.stack).origin
