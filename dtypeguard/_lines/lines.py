"""The lines of source behind what an analysis finds in a program."""

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .._carry.call import SplitTree
from .._leaves.compat import traced_anew
from .._leaves.dtypes import is_weak
from .._leaves.types import Aval, PyTree
from .._program.graph import Equation
from .._program.trace import Program, TraceFailed
from .._source.files import is_installed
from .._source.origin import Origin, Why
from .blame import Matches, blame, nearest_input, source
from .equations import is_displaced, is_like, is_of_users, origin_of
from .watch import Watch


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
        """The lines that gave an output of the step a property.

        Args:
            output: the value in the step's graph.
            matches: whether an abstract value has the property, the new dtype for example.
            leaves: the inputs that the output continues, as the bits of an integer.
        """
        graph = self._program.step
        if output in graph.constants:
            self._watching()
            number = graph.outputs.index(output)
            return Why(self._made(_nodes(self._watched.returned, number)))
        found = blame(graph, output, matches, leaves)
        if any(is_displaced(each.stack) for each in found[:2] if each is not None):
            number = graph.outputs.index(output)
            graph = self.undisplaced().step
            output = graph.outputs[number]
            found = blame(graph, output, matches, leaves)
        cause = line_of(found.cause)
        user = found.cause or found.promotion
        line = line_of(user)
        if line is not None and found.constant and found.operand is not None:
            constant = graph.avals[found.operand], graph.values.get(found.operand)
            watch = self._watching_line(line, user)
            maker = watch.maker(line, matches, *constant, self._holding)
            cause = maker if cause or maker.users != line.users else None
        elif cause is None and found.operand in graph.inputs:
            cause = self._given(graph.inputs.index(found.operand))
        root = found.cause or found.promotion
        if root is not None and is_like(root.stack):
            line = line_of(root)
            watch = self._watching_line(line, root) if line else None
            cause = (watch.model(line, matches) if watch and line else None) or cause
        if cause is not None and is_installed(cause.users.file):
            # An argument of the user's may force it as well.
            value = nearest_input(graph, output, matches)
            if value is not None:
                cause = self._given(graph.inputs.index(value)) or cause
        return Why(line_of(found.promotion), cause)

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

    def undisplaced(self) -> Program:
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
        is_kept = any(is_of_users((each,)) for each in inside)
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


class Has(NamedTuple):
    """Whether an abstract value has this dtype or shape."""

    name: str
    value: object

    def __call__(self, aval: Aval) -> bool:
        return getattr(aval, self.name, None) == self.value


def line_of(equation: Equation | None) -> Origin | None:
    """The line of an equation, if there is one."""
    return None if equation is None else origin_of(equation.stack)
