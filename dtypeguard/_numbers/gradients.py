"""Which gradients are narrow in a program of which some lines are wide."""

import collections
import itertools

from .._lines.equations import Written
from .._lines.tracebacks import Chain
from .nodes import COMPUTED, Node
from .program import NumericProgram

Shape = tuple[int, ...]


class Gradients:
    """Which gradients are narrow where lines of the source are wide.

    A gradient has the dtype of what it is the gradient of. Which value that is, the call
    and its shape tell.

    Args:
        program: the program.
    """

    def __init__(self, program: NumericProgram):
        if program.calls is None:
            program.calls = numbered_calls(program)
        self._calls = program.calls
        self._taken = dict[tuple[int | None, Shape], bool]()
        self._returned = dict[tuple[int | None, Shape], bool]()

    def note_taken(self, node: Node, shape: Shape, is_wide: bool) -> None:
        """Notes whether an operand of a forward equation is wide."""
        place = self._calls.get(node.number), shape
        self._taken[place] = is_wide or self._taken.get(place, False)

    def note_returned(self, node: Node, shape: Shape, is_wide: bool) -> None:
        """Notes whether a result of a forward equation is wide."""
        place = self._calls.get(node.number), shape
        self._returned[place] = is_wide or self._returned.get(place, False)

    def is_of_taken(self, node: Node, shape: Shape) -> bool:
        """Whether what a backward equation makes is the gradient of a narrow value."""
        return not self._taken.get((self._calls.get(node.number), shape), True)

    def is_of_returned(self, node: Node, shape: Shape) -> bool:
        """Whether what a backward equation is given is the gradient of a narrow value."""
        return not self._returned.get((self._calls.get(node.number), shape), True)


def numbered_calls(program: NumericProgram) -> dict[int, int]:
    """The numbers of the calls on the user's lines that lead to each equation.

    An equation of a backward pass has that of the last forward call on its line whose
    backward pass has not begun. Equations that follow each other are of one call; one
    that is met again after others begins another.
    """
    found, forward = dict[int, int](), collections.defaultdict[Chain, list[int]](list)
    current = dict[tuple[Chain, bool], tuple[int, set[object]]]()
    last, numbers = None, itertools.count()
    for node in program.block.all_nodes():
        if node.rule != COMPUTED:
            continue
        eqn, way = node.eqn, (Written(node.stack).calls, node.is_backward)
        shapes = (getattr(var.aval, "shape", ()) for var in (*eqn.invars, *eqn.outvars))
        looks = node.name, *shapes
        if way not in current or (way != last and looks in current[way][1]):
            number = next(numbers)
            if not way[1]:
                forward[way[0]].append(number)
            elif forward[way[0]]:
                number = forward[way[0]].pop()
            current[way] = number, set()
        number, seen = current[way]
        seen.add(looks)
        found[node.number], last = number, way
    return found
