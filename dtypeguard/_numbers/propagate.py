"""What each equation of a program computes in, by a rule: types pushed through it."""

import collections
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._lines.equations import Written
from .._program.graph import loop_parts
from .gradients import Gradients
from .nodes import CALL, COMPUTED, SOLVE, STOCHASTIC, Block, Node
from .primitives import IN_PLACE, is_inexact
from .program import NumericProgram

# What an equation computes in: the dtypes as written, wide ones, or in wide ones what it
# makes as written of what it is given. `ROUNDED` is the error of one line alone.
WRITTEN, WIDE, ROUNDED = 0, 1, 2


class WidthPlan(NamedTuple):
    """What each equation of a program computes in.

    Attributes:
        entries: `WRITTEN`, `WIDE` or `ROUNDED`, by the number of the equation.
        is_wide_given: whether the inputs are wide.
        is_wide: whether constants that are given to loops, and what these carry, are wide
            where nothing else is said.
        carried: which results of a loop, of branches or of shards are wide, by its number.
        rounded: the uses of values that are rounded first, by the number of the equation
            or the block and the place among its operands or outputs.
        constants: the lines and Python numbers that are rounded though the line is wide.
        mixed: equations that take operands of one dtype, where the source would give them
            wide and narrow ones.
    """

    entries: np.ndarray
    is_wide_given: bool
    is_wide: bool
    carried: dict[int, tuple[bool, ...]] = {}  # noqa: RUF012 (never changed)
    rounded: frozenset[tuple[int, int]] = frozenset()
    constants: frozenset[tuple[int, float]] = frozenset()
    mixed: tuple[Node, ...] = ()

    def part(self, first: int, last: int) -> object:
        """What it says of the equations in a range, as a key."""
        within = lambda number: first <= number <= last
        carried = [(n, x) for n, x in self.carried.items() if within(n)]
        rounded = sorted(each for each in self.rounded if within(each[0]))
        entries = self.entries[first : last + 1].tobytes()
        return entries, self.is_wide, (*carried,), (*rounded,), self.constants


class _Width(NamedTuple):
    """What is known of a value.

    Attributes:
        is_wide: whether it, or what it is made of, is wider than the program has it.
        is_due: whether it is to be rounded where it is used: a part of the gradient of a
            narrow value once all parts are added, or what is cast back.
        line: the line that made it, if that is wide.
    """

    is_wide: bool = False
    is_due: bool = False
    line: int | None = None


class Types:
    """Pushes types through a program, in which a rule makes equations wide.

    Args:
        program: the program.
        is_wide: the rule.
        is_given_wide: whether the inputs are wide.
        gradients: which gradients are narrow, if what is wide is to be so in the source.
        given_wide: the lines of which the gradients are wide all the same.
        casts_back: whether what a line makes is rounded where another one uses it.
    """

    def __init__(
        self,
        program: NumericProgram,
        is_wide: Callable[[Node, bool], bool],
        is_given_wide: bool = False,
        gradients: Gradients | None = None,
        given_wide: Collection[int] = (),
        casts_back: bool = False,
    ):
        self._casts_back = casts_back
        self._program, self._is_wide, self._gradients = program, is_wide, gradients
        self._is_given_wide, self._given_wide = is_given_wide, given_wide
        self._entries = np.zeros(program.size, np.int8)
        self._carried = dict[int, tuple[bool, ...]]()
        self._rounded = collections.defaultdict[tuple[int, int], bool](bool)
        self._mixed = dict[int, Node]()

    def plan(self) -> WidthPlan:
        block = self._program.block
        given = [
            _Width(self._is_given_wide and is_inexact(x))
            for x in self._program.jaxpr.in_avals
        ]
        made = self._run(block, given)
        self._added(block.number, made)
        rounded = frozenset(use for use, is_due in self._rounded.items() if is_due)
        is_wide = self._is_given_wide
        plan = WidthPlan(self._entries, is_wide, is_wide, self._carried, rounded)
        return plan._replace(mixed=(*self._mixed.values(),))

    def _run(self, block: Block, given: Sequence[_Width]) -> list[_Width]:
        consts = len(block.inputs) - len(given)
        known = dict(zip(block.inputs, [*[_Width()] * consts, *given]))
        for node in block.nodes:
            values = [_Width() if hasattr(v, "val") else known[v] for v in node.eqn.invars]
            known |= zip(node.eqn.outvars, self._node(node, values))
        return [_Width() if hasattr(v, "val") else known[v] for v in block.outputs]

    def _node(self, node: Node, values: list[_Width]) -> Sequence[_Width]:
        rule = node.rule
        if rule in (CALL, SOLVE):
            if rule == SOLVE:
                values = solved(node, values)
            return self._run(node.inner[0], values)
        if rule in _JOINING:
            return self._joined(node, self._added(node.number, values))
        if rule in ("reduce_precision", STOCHASTIC):
            if self._wants_wide(node, values) and not self._program.formats.is_own:
                self._entries[node.number] = WIDE
                return [_Width(is_inexact(v.aval)) for v in node.eqn.outvars]
            return [_Width()] * len(node.eqn.outvars)
        if rule != COMPUTED:
            return [_Width()] * len(node.eqn.outvars)
        return self._computed(node, values)

    def _wants_wide(self, node: Node, values: Sequence[_Width]) -> bool:
        # `x.at[0].set(y)` has the dtype of `x`.
        counted = values[:1] if node.name in IN_PLACE else values
        return self._is_wide(node, any(value.is_wide for value in counted))

    def _computed(self, node: Node, values: list[_Width]) -> list[_Width]:
        gradients = self._gradients if node.is_backward else None
        if node.name != "add_any":
            values = self._added(node.number, values, node.line)
            if gradients is not None:
                shapes = [_shape(var) for var in node.eqn.invars]
                values = [
                    v._replace(is_due=v.is_wide and gradients.is_of_returned(node, shape))
                    for v, shape in zip(values, shapes)
                ]
                values = self._added(node.number, values)
        wide = self._wants_wide(node, values)
        self._entries[node.number] = WIDE if wide else WRITTEN
        if wide and self._is_mixed(node, values):
            self._mixed[node.number] = node
        else:
            self._mixed.pop(node.number, None)
        made = [
            _Width(wide and is_inexact(var.aval), line=node.line)
            for var in node.eqn.outvars
        ]
        if gradients is not None:
            if node.line not in self._given_wide:
                is_part = any(value.is_due for value in values)
                taken = [gradients.is_of_taken(node, _shape(v)) for v in node.eqn.outvars]
                made = [
                    m._replace(is_due=is_part or (m.is_wide and t))
                    for m, t in zip(made, taken)
                ]
        elif self._gradients is not None:
            for variables, types, note in (
                (node.eqn.invars, values, self._gradients.note_taken),
                (node.eqn.outvars, made, self._gradients.note_returned),
            ):
                for var, value in zip(variables, types):
                    if is_inexact(var.aval):
                        note(node, _shape(var), value.is_wide)
        return made

    def _is_mixed(self, node: Node, values: Sequence[_Width]) -> bool:
        """Whether an equation takes no operands of the dtypes that the source gives it."""
        pairs = zip(node.eqn.invars, values)
        arrays = [(var, v) for var, v in pairs if not hasattr(var, "val")]
        is_one = len({v.is_wide for var, v in arrays if is_inexact(var.aval)}) < 2
        return not (is_one or node.is_backward) and Written(node.stack).takes_one_dtype

    def _added(
        self, number: int, values: Sequence[_Width], line: int | None = None
    ) -> list[_Width]:
        """Values as they are used: all parts are added, and another line has cast back.

        Args:
            number: of the equation or the block that uses them.
            values: the values.
            line: the line that uses them.
        """
        made = []
        for place, value in enumerate(values):
            is_back = self._casts_back and value.is_wide and value.line != line
            is_rounded = value.is_due or is_back
            self._rounded[number, place] |= is_rounded
            made.append(_Width() if is_rounded else value)
        return made

    def _joined(self, node: Node, values: list[_Width]) -> list[_Width]:
        """The results of a loop, of branches or of shards, wide if one way is."""
        count = len(node.eqn.outvars)
        wide = [False] * count

        def join(block: Block, given: Sequence[_Width]) -> None:
            made = self._added(block.number, self._run(block, given))
            for place, value in enumerate(made):
                wide[place] |= value.is_wide

        if node.rule == "cond":
            for block in node.inner:
                join(block, values[1:])
        elif node.rule == "shard_map":
            join(node.inner[0], values)
        else:
            _, before, consts, carried = loop_parts(node.eqn)
            first = before + consts
            wide[:carried] = [value.is_wide for value in values[first : first + carried]]
            outside, xs = values[before:first], values[first + carried :]
            while True:
                known = [*map(_Width, wide[:carried])]
                join(node.inner[0], [*outside, *known, *xs])
                if [value.is_wide for value in known] == wide[:carried]:
                    break
            if node.rule == "while":
                self._run(node.inner[1], [*values[:before], *known])
        self._carried[node.number] = tuple(wide)
        return [*map(_Width, wide)]


def _shape(var: Any) -> tuple[int, ...]:
    return getattr(var.aval, "shape", ())


_JOINING = frozenset(["scan", "while", "cond", "shard_map"])


def solved(node: Node, values: Sequence[Any]) -> list[Any]:
    """The operands of the solver of a `custom_linear_solve`."""
    sizes = [size or 0 for size in node.eqn.params["const_lengths"]]
    first = sum(sizes[:2])
    return [*values[first : first + sizes[2]], *values[sum(sizes) :]]
