"""The lines of source behind what an analysis finds in a program."""

from collections.abc import Callable
from contextlib import suppress

from .._leaves.compat import traced_anew
from .._leaves.dtypes import is_python_number, is_weak
from .._program.graph import Graph
from .._program.trace import Program, TraceFailed
from .._source.origin import Origin, Why
from .blame import source
from .record import of_number, recorded
from .region import Matches
from .rules import RuleLines
from .why import Ends, line_of, why


class ProgramLines(Ends):
    """Finds the lines of source behind the values of a program.

    Args:
        program: the traced program.
        retrace: traces the program again, so that a user's rules have lines of their own;
            None where that is not possible.
        begun: finds the line that made an input of the step, by its number.
    """

    def __init__(
        self,
        program: Program,
        retrace: Callable[[], Program | None] = lambda: None,
        begun: Callable[[int], Origin | None] = lambda _: None,
    ):
        self._program, self._retrace, self._begun = program, retrace, begun
        self._undisplaced: Program | None = None

    def of(self, output: int, matches: Matches, leaves: int) -> Why:
        """The lines that gave an output of the step a property, as `why` finds them."""
        return why(self._program.step, output, matches, leaves, self)

    def given(self, number: int) -> Why:
        return Why(self._begun(number))

    def of_weak_leaf(self, number: int) -> Why:
        """The line that made a leaf of the first carry weak."""
        first = self._program.first
        made = first and line_of(source(first, first.outputs[number], is_weak))
        if made is not None:
            return Why(made)
        leaves = [leaf for tree in self._program.carried for leaf in tree.arrays]
        leaf = leaves[number]
        known = of_number("", leaf) if is_python_number(leaf) else recorded(leaf).root
        return Why(known)

    def undisplaced(self, graph: Graph) -> Graph:
        return self.undisplaced_program().step

    def undisplaced_program(self) -> Program:
        """The program, traced once more so that a user's rules have lines of their own.

        The same program if that is not possible.
        """
        if self._undisplaced is None:
            self._undisplaced = self._program
            with RuleLines(), traced_anew(), suppress(TraceFailed):
                again = self._retrace()
                if again is not None and again.step.types == self._program.step.types:
                    self._undisplaced = again
        return self._undisplaced
