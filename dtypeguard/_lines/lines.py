"""The lines of source behind what an analysis finds in a program."""

import contextlib
from collections.abc import Callable, Sequence

from .._carry.call import SplitTree
from .._leaves.compat import traced_anew
from .._leaves.dtypes import is_weak
from .._leaves.types import PyTree
from .._program.graph import Equation, Graph
from .._program.trace import Program, TraceFailed
from .._source.origin import Origin, Why
from .blame import Blame, source
from .equations import Written
from .region import Matches
from .watch import Watch
from .why import line_of, why


class ProgramLines:
    """Finds the lines of source behind the values of a program.

    Args:
        program: the traced program.
        watch: what watched that trace; None if nothing did.
        retrace: traces the program again, to find the line that created a constant. It
            may return None where that is no longer possible.
        bound: finds the line that assigned a part of a first carry to a variable.
        holding: finds the line that assigned what holds a value.
        given: finds the line that made an input of the step, by its number.
    """

    def __init__(
        self,
        program: Program,
        watch: Watch | None,
        retrace: Callable[[], Program | None],
        bound: Callable[[PyTree], Origin | None] = lambda _: None,
        holding: Callable[[object], Origin | None] = lambda _: None,
        given: Callable[[int], Origin | None] = lambda _: None,
    ):
        self._program = self._watched = program
        self._watch = watch
        self._retrace = retrace
        self._bound, self._holding, self._given = bound, holding, given
        self._is_anew = False

    def of(self, output: int, matches: Matches, leaves: int) -> Why:
        """The lines that gave an output of the step a property, as `why` finds them."""
        return why(self._program.step, output, matches, leaves, self)

    def result(self, output: int) -> Why:
        self._watching()
        number = self._program.step.outputs.index(output)
        return Why(self._made(_nodes(self._watched.returned, number)))

    def given(self, number: int) -> Why:
        return Why(self._given(number))

    def constant(
        self, graph: Graph, found: Blame, line: Origin, matches: Matches
    ) -> Origin | None:
        user = found.cause or found.promotion
        if found.operand is None:
            return line
        constant = graph.avals[found.operand], graph.values.get(found.operand)
        watch = self._watching_line(line, user)
        return watch.maker(line, matches, *constant, self._holding)

    def model(self, user: Equation, line: Origin, matches: Matches) -> Origin | None:
        return self._watching_line(line, user).model(line, matches)

    def undisplaced(self, graph: Graph) -> Graph:
        return self.undisplaced_program().step

    def of_weak_leaf(self, number: int) -> Why:
        """The line that made a leaf of the first carry weak."""
        first = self._program.first
        if first is not None:
            made = line_of(source(first, first.outputs[number], is_weak))
            if made is not None:
                return Why(made)
        self._watching()
        nodes = _nodes(self._watched.carried, number)
        made = self._made(nodes) or next(filter(None, map(self._bound, nodes)), None)
        return Why(made)

    def undisplaced_program(self) -> Program:
        """The program, traced once more so that a user's rules have lines of their own.

        The same program if that is not possible.
        """
        self._watching(anew=True)
        one, other = self._program.step, self._watched.step
        return self._watched if one.types == other.types else self._program

    def _made(self, nodes: Sequence[PyTree]) -> Origin | None:
        return next(filter(None, map(self._watching().made, nodes)), None)

    def _watching_line(self, line: Origin, equation: Equation | None) -> Watch:
        """What watched a trace that ran the line of an equation, if one can be had."""
        inside = equation.stack[:-1] if equation else ()
        # A trace that JAX has kept does not run again; most are those of its own functions.
        is_kept = any(Written((each,)).is_of_users for each in inside)
        for anew in (is_kept, True):
            if self._watch is None or not self._watch.saw(line):
                self._watching(anew)
        return self._watching()

    def _watching(self, anew: bool = False) -> Watch:
        """What watched a trace.

        Args:
            anew: whether in another one JAX is to use no trace that it has kept.
        """
        if self._watch is None or (anew and not self._is_anew):
            self._is_anew, program = anew, None
            kept = traced_anew() if anew else contextlib.nullcontext()
            with Watch() as watch, kept, contextlib.suppress(TraceFailed):
                program = self._retrace()
            if self._watch is None or program is not None:
                self._watch, self._watched = watch, program or self._program
        assert self._watch is not None
        return self._watch


def _nodes(trees: Sequence[SplitTree], number: int) -> Sequence[PyTree]:
    """An array leaf of some trees and the nodes that contain it, inside out."""
    for parts in trees:
        if number < len(parts.arrays):
            return parts.arrays[number], *parts.holders(number)
        number -= len(parts.arrays)
    return ()
