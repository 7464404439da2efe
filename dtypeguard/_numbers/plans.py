"""Plans: what each equation of a program computes in, of what is known of values.

What a plan says of an equation is a rule of its own: `WideLines` here has lines of the
source wide, and `ByPlan` of `_autocast` what a file names.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

import numpy as np

from .._leaves.types import Aval
from .._program.program import Node
from .._program.walk import Walk
from .._tracebacks.written import Written
from .evaluate import Computes
from .primitives import IN_PLACE, is_inexact
from .program import NumericProgram

# What an equation computes in: the dtypes as written, wide ones, or in wide ones what it
# makes as written of what it is given. `ROUNDED` is the error of one line alone. Greater
# entries are of `WidthPlan.dtypes`, in order.
WRITTEN = 0
WIDE = 1
ROUNDED = 2
FIRST_DTYPE = 3

# Entries of several results, by the number of the equation.
_Carried = dict[int, tuple[int, ...]]


class WidthPlan(NamedTuple):
    """What each equation of a program computes in.

    Attributes:
        entries: `WRITTEN`, `WIDE`, `ROUNDED` or one of `dtypes`, by the number of the
            equation.
        is_wide_given: whether the inputs are wide.
        is_rounding: whether all is wide but for what rounds: constants that are given to
            loops, and what these carry, as well.
        carried: what the results of a loop, of branches, of shards or of a call leave in,
            as entries, by its number.
        dtypes: what entries from `FIRST_DTYPE` on stand for.
    """

    entries: np.ndarray
    is_wide_given: bool
    is_rounding: bool = False
    carried: _Carried = {}  # noqa: RUF012 (never changed)
    dtypes: tuple[Computes, ...] = ()

    def with_all(self, entry: int) -> "WidthPlan":
        """Returns the plan with one entry for all equations."""
        return self._replace(entries=np.full_like(self.entries, entry))

    def computes(self, entry: int) -> Computes | None:
        """Returns the dtypes that an entry names; None if it names none."""
        if entry < FIRST_DTYPE:
            return None
        return self.dtypes[entry - FIRST_DTYPE]

    def part(self, first: int, last: int) -> object:
        """Returns a key for the equations in a range, that equal calls have in common."""
        # Calls of one function have other numbers, and the same entries in order.
        stop = last + 1
        entries = self.entries[first:stop].tobytes()
        numbers = range(first, stop)
        carried = tuple(map(self.carried.get, numbers))
        return entries, carried, self.is_rounding, self.dtypes


PlanState = TypeVar("PlanState")


class Propagation(Walk[PlanState]):
    """Pushes what a plan knows of values through a program.

    Args:
        size: how many numbers the equations of the program have.

    Attributes:
        entries: what each equation computes in, so far.
        carried: see `WidthPlan`.
    """

    def __init__(self, size: int):
        self.entries = np.zeros(size, np.int8)
        self.carried: _Carried = {}

    def entry_of(self, value: PlanState, aval: Aval) -> int:
        """Returns the entry in which a value leaves a loop, branches, shards or a call."""
        return WRITTEN

    def left(self, node, results):
        avals = [var.aval for var in node.eqn.outvars]
        entries = map(self.entry_of, results, avals)
        self.carried[node.number] = tuple(entries)
        return super().left(node, results)


class WideLines(Propagation[bool]):
    """Equations that a rule makes wide, and what must be wide between them.

    Of a value it is known whether it is wider than the program has it.
    """

    def __init__(
        self,
        program: NumericProgram,
        is_wide: Callable[[Node, bool], bool],
    ):
        super().__init__(program.size)
        self.program = program
        self._is_wide = is_wide

    def plan(self, is_wide: bool = False) -> WidthPlan:
        """Returns the plan, with the inputs wide or not."""
        arguments = []
        for aval in self.program.jaxpr.in_avals:
            arguments.append(is_wide and is_inexact(aval))
        self.block(self.program.block, arguments)
        return WidthPlan(self.entries, is_wide, carried=self.carried)

    def constant(self, var, array):
        return False

    def read(self, user, place, var, values):
        # A cast to the dtype that the value has as written ends its width.
        ends = user.block.traces.wide.ends
        if (user.source, place) in ends:
            return False
        return super().read(user, place, var, values)

    def joined(self, values, attempt):
        return any(values)

    def entry_of(self, value, aval):
        if value:
            return WIDE
        return WRITTEN

    def visit_own(self, node, values):
        return [False for _ in node.eqn.outvars]

    visit_sample = visit_own

    def computed(self, node, values):
        if node.name in IN_PLACE:
            values = values[:1]  # `x.at[0].set(y)` has the dtype of `x`
        if not self._is_wide(node, any(values)):
            return self.visit_own(node, values)
        self.entries[node.number] = WIDE
        return [is_inexact(var.aval) for var in node.eqn.outvars]


def written(program: NumericProgram) -> WidthPlan:
    """Returns the plan with every equation as written."""
    return WidthPlan(np.zeros(program.size, np.int8), is_wide_given=False)


def wide(program: NumericProgram) -> WidthPlan:
    """Returns the plan with every equation in wide types, explicit casts as well."""
    return rounding(program, ())


def rounding(program: NumericProgram, lines: Collection[int]) -> WidthPlan:
    """Returns a plan by which some lines round their results, and the rest is wide.

    Args:
        program: the program.
        lines: the numbers of these lines; 0 may stand for the inputs.
    """
    entries = np.full(program.size, WIDE, np.int8)
    for node in program.block.all_nodes():
        if node.line in lines:
            entries[node.number] = ROUNDED
    is_wide_given = not _has_inputs(program, lines)
    return WidthPlan(entries, is_wide_given, is_rounding=True)


def _has_inputs(program: NumericProgram, lines: Collection[int]) -> bool:
    """Returns whether the inputs, which 0 stands for, are among the lines that round."""
    if program.formats.narrow is None:
        return False
    return 0 in lines


def wide_lines(program: NumericProgram, lines: Collection[int], keeps: bool) -> WidthPlan:
    """Returns a plan with some lines wide in the source, and the rest as written.

    The backward pass of a line is as wide as the line.

    Args:
        program: the program.
        lines: the numbers of the lines.
        keeps: whether what is made of their results stays wide up to an explicit cast.
    """
    all_wide = set(lines)

    def is_wide(node: Node, has_wide: bool) -> bool:
        line = node.line
        if line in lines:
            return True
        if node.name == "add_any":  # of gradients
            return has_wide
        # JAX makes the backward pass of a line: the source has no other line for it.
        if node.is_backward and line is not None:
            return line in all_wide
        if not keeps:
            return False
        if not has_wide:
            return False
        if _asks_for_narrow(program, node):
            return False
        if Written(node.stack).cast_of_ours is not None:
            return False
        if line is not None:
            all_wide.add(line)
        return True

    is_wide_given = _has_inputs(program, lines)
    return WideLines(program, is_wide).plan(is_wide_given)


def _asks_for_narrow(program: NumericProgram, node: Node) -> bool:
    """Returns whether the source asks for a narrow dtype there, whatever it is given."""
    # JAX makes the casts of a backward pass.
    if node.is_backward:
        return False
    if node.name != "convert_element_type":
        return False
    if not node.is_asked:
        return False
    (result,) = node.eqn.outvars
    return program.formats.rounds(result.aval.dtype)
