"""Plans: what each equation of a program computes in, of what is known of values.

There is one way through calls, loops, branches and shards. What a plan says of an equation
is a rule of its own: `WideLines` here has lines of the source wide, and `ByPlan` of
`_autocast` what a file names.
"""

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from .._leaves.dtypes import kind
from .._leaves.types import Aval, DType, Leaf
from .._program.jaxprs import loop_parts
from .nodes import CALL, COMPUTED, SOLVE, STOCHASTIC, Block, Node
from .primitives import IN_PLACE, is_inexact
from .program import NumericProgram

# What an equation computes in: the dtypes as written, wide ones, or in wide ones what it
# makes as written of what it is given. `ROUNDED` is the error of one line alone. Greater
# entries are of `WidthPlan.dtypes`, in order.
WRITTEN, WIDE, ROUNDED, FIRST_DTYPE = 0, 1, 2, 3


class Computes(NamedTuple):
    """The dtypes of floating operands and results of an equation, whatever is written."""

    dtype: DType
    result: DType

    def of(self, dtype: DType) -> DType:
        """The dtype of a result that is written in another."""
        return self.result if kind(dtype) == "float" else dtype


class WidthPlan(NamedTuple):
    """What each equation of a program computes in.

    Attributes:
        entries: `WRITTEN`, `WIDE`, `ROUNDED` or one of `dtypes`, by the number of the
            equation.
        is_wide_given: whether the inputs are wide.
        is_wide: whether constants that are given to loops, and what these carry, are wide
            where nothing else is said.
        carried: what the results of a loop, of branches, of shards or of a call leave in,
            as entries, by its number.
        constants: the lines and Python numbers that are rounded though the line is wide.
        dtypes: what entries from `FIRST_DTYPE` on stand for.
    """

    entries: np.ndarray
    is_wide_given: bool
    is_wide: bool
    carried: dict[int, tuple[int, ...]] = {}  # noqa: RUF012 (never changed)
    constants: frozenset[tuple[int, float]] = frozenset()
    dtypes: tuple[Computes, ...] = ()

    def computes(self, entry: int) -> Computes | None:
        """The dtype that an entry names; None if it names none."""
        return self.dtypes[entry - FIRST_DTYPE] if entry >= FIRST_DTYPE else None

    def part(self, first: int, last: int) -> object:
        """What it says of the equations in a range, as a key that calls have in common."""
        carried = [
            (n - first, x) for n, x in self.carried.items() if first <= n <= last and any(x)
        ]
        entries = self.entries[first : last + 1].tobytes()
        named = self.is_wide, self.constants, self.dtypes
        return entries, (*carried,), *named


PlanState = TypeVar("PlanState")


class Propagation(Generic[PlanState]):
    """Pushes what a plan knows of values through a program.

    Attributes:
        program: the program.
        entries: what each equation computes in, so far.
        carried: see `WidthPlan`.
    """

    def __init__(self, program: NumericProgram):
        self.program = program
        self.entries = np.zeros(program.size, np.int8)
        self.carried = dict[int, tuple[int, ...]]()

    # What a plan says

    def constant(self, array: Leaf, aval: Aval) -> PlanState:
        """What is known of an array that the program holds."""
        raise NotImplementedError

    def computed(self, node: Node, values: list[PlanState]) -> Sequence[PlanState]:
        """What is known of the results of an equation without others inside."""
        raise NotImplementedError

    def opaque(self, node: Node, values: list[PlanState]) -> Sequence[PlanState]:
        """The same of an equation that runs as it stands."""
        raise NotImplementedError

    def called(self, node: Node, values: list[PlanState]) -> Sequence[PlanState]:
        """The same of a call."""
        return self.block(node.inner[0], values)

    def entering(self, node: Node, values: list[PlanState]) -> list[PlanState]:
        """The operands of a loop, of branches or of shards inside of it."""
        return values

    def leaving(self, block: Block, values: list[PlanState]) -> list[PlanState]:
        """The results of a block outside of it."""
        return values

    def crossing(self, value: PlanState, aval: Aval) -> PlanState:
        """What a loop carries, of what it is given first."""
        return value

    def ended(self, value: PlanState) -> PlanState:
        """A value behind a cast to the dtype that it has."""
        return value

    def joined(self, values: Sequence[PlanState], attempt: int) -> PlanState:
        """What is known of a value that is one of several."""
        raise NotImplementedError

    def entry_of(self, value: PlanState, aval: Aval) -> int:
        """What a value leaves a loop, branches, shards or a call in."""
        raise NotImplementedError

    # The way through a program

    def block(self, block: Block, given: Sequence[PlanState]) -> list[PlanState]:
        count = len(block.inputs) - len(given)
        consts = zip(block.consts[:count], block.inputs)
        held = [self.constant(x, var.aval) for x, var in consts]
        known = dict(zip(block.inputs, [*held, *given]))
        read = lambda v: self.constant(v.val, v.aval) if hasattr(v, "val") else known[v]
        for node in block.nodes:
            values = [*map(read, node.eqn.invars)]
            values = [self.ended(x) if n in node.ends else x for n, x in enumerate(values)]
            known |= zip(node.eqn.outvars, self.node(node, values))
        values = [*map(read, block.outputs)]
        return [self.ended(x) if n in block.ends else x for n, x in enumerate(values)]

    def node(self, node: Node, values: list[PlanState]) -> Sequence[PlanState]:
        if node.rule == CALL:
            return self.called(node, values)
        if node.rule == SOLVE:
            return self.solve(node, values)
        if node.rule in ("scan", "while", "cond", "shard_map"):
            is_loop = node.rule in ("scan", "while")
            join = self._loop if is_loop else self._branches
            made = join(node, self.entering(node, values))
            self.leave(node, made)
            return [self.crossing(x, v.aval) for x, v in zip(made, node.eqn.outvars)]
        rule = self.computed if node.rule == COMPUTED else self.opaque
        return rule(node, values)

    def leave(self, node: Node, values: Sequence[PlanState]) -> None:
        """Notes what results leave in."""
        pairs = zip(values, node.eqn.outvars)
        self.carried[node.number] = (*(self.entry_of(x, v.aval) for x, v in pairs),)

    def solve(self, node: Node, values: list[PlanState]) -> Sequence[PlanState]:
        return self.block(node.inner[0], solved(node, values))

    def inside(self, block: Block, given: Sequence[PlanState]) -> list[PlanState]:
        return self.leaving(block, self.block(block, given))

    def _branches(self, node: Node, values: list[PlanState]) -> list[PlanState]:
        given = values[1:] if node.rule == "cond" else values  # what shards are given
        made = [self.inside(block, given) for block in node.inner]
        return [self.joined(each, 0) for each in zip(*made)]

    def _loop(self, node: Node, values: list[PlanState]) -> list[PlanState]:
        _, before, consts, count = loop_parts(node.eqn)
        first, last = before + consts, before + consts + count
        pairs = zip(values[first:last], node.eqn.outvars)
        carry = [self.crossing(value, var.aval) for value, var in pairs]
        made: list[Any] = []
        for attempt in itertools.count(1):
            given = [*values[before:first], *carry, *values[last:]]
            made = self.inside(node.inner[0], given)
            after = [self.joined(pair, attempt) for pair in zip(carry, made)]
            if after == carry:
                break
            carry = after
        if node.rule == "while":
            self.block(node.inner[1], [*values[:before], *carry])
        return [*carry, *made[count:]]


class WideLines(Propagation[bool]):
    """Equations that a rule makes wide, and what must be wide between them.

    Of a value it is known whether it is wider than the program has it.
    """

    def __init__(
        self,
        program: NumericProgram,
        is_wide: Callable[[Node, bool], bool],
        is_given_wide: bool = False,
    ):
        super().__init__(program)
        self._is_wide, self._is_given_wide = is_wide, is_given_wide

    def plan(self) -> WidthPlan:
        is_wide = self._is_given_wide
        given = [is_wide and is_inexact(x) for x in self.program.jaxpr.in_avals]
        self.block(self.program.block, given)
        return WidthPlan(self.entries, is_wide, is_wide, self.carried)

    def constant(self, array: Leaf, aval: Aval) -> bool:
        return False

    def ended(self, value: bool) -> bool:
        return False

    def joined(self, values: Sequence[bool], attempt: int) -> bool:
        return any(values)

    def entry_of(self, value: bool, aval: Aval) -> int:
        return WIDE if value else WRITTEN

    def opaque(self, node: Node, values: list[bool]) -> list[bool]:
        is_rounding = node.rule in ("reduce_precision", STOCHASTIC)
        if is_rounding and not self.program.formats.is_own:
            return self.computed(node, values)
        return [False] * len(node.eqn.outvars)

    def computed(self, node: Node, values: list[bool]) -> list[bool]:
        # `x.at[0].set(y)` has the dtype of `x`.
        counted = values[:1] if node.name in IN_PLACE else values
        is_wide = self._is_wide(node, any(counted))
        self.entries[node.number] = WIDE if is_wide else WRITTEN
        return [is_wide and is_inexact(var.aval) for var in node.eqn.outvars]


def solved(node: Node, values: Sequence[Any]) -> list[Any]:
    """The operands of the solver of a `custom_linear_solve`."""
    sizes = [size or 0 for size in node.eqn.params["const_lengths"]]
    first = sum(sizes[:2])
    return [*values[first : first + sizes[2]], *values[sum(sizes) :]]


def written(program: NumericProgram) -> WidthPlan:
    """Every equation as written."""
    return WidthPlan(np.zeros(program.size, np.int8), False, False)


def wide(program: NumericProgram) -> WidthPlan:
    """Every equation in wide types, explicit casts as well."""
    return WidthPlan(np.full(program.size, WIDE, np.int8), True, True)


def rounding(
    program: NumericProgram, lines: Collection[int], lossless: Collection[int] = ()
) -> WidthPlan:
    """Some lines round what they make, and all else is wide; so may the inputs.

    Lossless are the equations that round nothing as written, by their numbers.
    """
    chosen = {*lines}
    entries = np.full(program.size, WIDE, np.int8)
    for node in program.block.all_nodes():
        if node.line in chosen and node.number not in lossless:
            entries[node.number] = ROUNDED
    is_given = program.formats.narrow is not None and 0 in chosen
    return WidthPlan(entries, not is_given, True)


def constant(program: NumericProgram, line: int, meant: float) -> WidthPlan:
    """One Python number is rounded, and all else is wide."""
    return wide(program)._replace(constants=frozenset([(line, meant)]))


def wide_lines(program: NumericProgram, lines: Collection[int], keeps: bool) -> WidthPlan:
    """Some lines wide in the source; the backward pass of a line is as wide as the line.

    With `keeps`, what is made of what they make is wide as well, up to an explicit cast;
    otherwise other lines are as written.
    """
    are_wide = {*lines}

    def is_wide(node: Node, has_wide: bool) -> bool:
        if node.line in lines:
            return True
        if node.name == "add_any":  # of gradients
            return has_wide
        if node.is_backward and node.line is not None:
            return node.line in are_wide
        if not keeps or node.is_of_ours:
            return False
        # Up to where the source asks for a narrow dtype, whatever is given.
        is_asked = node.name == "convert_element_type" and node.is_asked
        is_narrow = is_asked and program.formats.rounds(node.eqn.outvars[0].aval.dtype)
        is_kept = has_wide and (node.is_backward or not is_narrow)
        if is_kept and node.line is not None:
            are_wide.add(node.line)
        return is_kept

    is_given = program.formats.narrow is not None and 0 in lines
    return WideLines(program, is_wide, is_given).plan()
