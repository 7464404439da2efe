"""Plans: what each equation of a program computes in, as data that is made on the host.

An entry says it of an equation, and `rounded` of the use of a value by another equation.
"""

import collections
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._lines.equations import cast_of_ours, is_explicit, is_following
from .._program.graph import Stack, loop_parts
from .formats import Formats
from .gradients import Gradients
from .primitives import is_inexact
from .program import COMPUTED, Block, Node, Program

# What an equation computes in: the dtypes as written, wide ones, or in wide ones what it
# makes as written of what it is given. `ROUNDED` is the error of one line alone.
WRITTEN, WIDE, ROUNDED = 0, 1, 2


# The identities of an equation and of those that contain it, inside out.
Key = tuple[int, ...]


class Plan(NamedTuple):
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
    """

    entries: np.ndarray
    is_wide_given: bool
    is_wide: bool
    carried: dict[int, tuple[bool, ...]] = {}  # noqa: RUF012 (never changed)
    rounded: frozenset[tuple[int, int]] = frozenset()
    constants: frozenset[tuple[int, float]] = frozenset()

    def part(self, first: int, last: int) -> object:
        """What it says of the equations in a range, as a key."""
        within = lambda number: first <= number <= last
        carried = [(n, x) for n, x in self.carried.items() if within(n)]
        rounded = sorted(each for each in self.rounded if within(each[0]))
        entries = self.entries[first : last + 1].tobytes()
        return entries, self.is_wide, (*carried,), (*rounded,), self.constants


def written(program: Program) -> Plan:
    """Every equation as written."""
    return Plan(np.zeros(program.size, np.int8), False, False)


def wide(program: Program) -> Plan:
    """Every equation in wide types, explicit casts as well."""
    return Plan(np.full(program.size, WIDE, np.int8), True, True)


def rounding(
    program: Program, lines: Collection[int], is_backward: bool | None = None
) -> Plan:
    """Some lines round what they make, and all else is wide.

    Args:
        program: the program.
        lines: their numbers; that of an input, if these are rounded.
        is_backward: if given, they round in this pass alone.
    """
    chosen = {*lines}
    entries = np.full(program.size, WIDE, np.int8)
    for node in program.block.all_nodes():
        is_in_pass = is_backward is None or node.is_backward == is_backward
        if node.line in chosen and is_in_pass:
            entries[node.number] = ROUNDED
    is_given = program.formats.narrow is not None and 0 in chosen
    return Plan(entries, not is_given, True)


def constant(program: Program, line: int, meant: float) -> Plan:
    """One Python number is rounded, and all else is wide."""
    return wide(program)._replace(constants=frozenset([(line, meant)]))


def all_but(program: Program, equations: Collection[Key]) -> Plan:
    """All is wide but these equations, by the identities of each and of those around it."""
    return chosen_wide(program, lambda node, _: key_of(node.stack) not in equations, True)


def key_of(stack: Stack) -> Key:
    return tuple(map(id, stack))


def chosen_wide(
    program: Program,
    is_wide: Callable[[Node, bool], bool],
    is_given_wide: bool = False,
) -> Plan:
    """The equations that a rule chooses, and what must be wide between them.

    Args:
        program: the program.
        is_wide: the rule, given an equation and whether it has a wide operand.
        is_given_wide: whether the inputs are wide.
    """
    return _Types(program, is_wide, is_given_wide).plan()


def wide_lines(
    program: Program,
    lines: Collection[int],
    keeps: bool,
    given_wide: Collection[int] = (),
) -> Plan:
    """Some lines wide in the source, and so what is made of what they make, or not.

    Args:
        program: the program.
        lines: their numbers.
        keeps: whether what they make stays wide, up to an explicit cast; otherwise it is
            cast back where another line uses it.
        given_wide: those that are inside of a package which is given wide arrays: then so
            are the gradients of these.
    """

    def is_wide(node: Node, has_wide: bool) -> bool:
        if node.line in lines:
            return True
        if node.name == "add_any":  # of gradients
            return has_wide
        if not keeps or cast_of_ours(node.stack) is not None:
            return False
        return has_wide and not is_narrowed(program.formats, node)

    is_given = program.formats.narrow is not None and 0 in lines
    # As if all were narrow, lines stay wide, and what is narrow rounds what it is given.
    casts_back = not keeps and program.formats.narrow is None
    gradients = Gradients(program)
    return _Types(program, is_wide, is_given, gradients, given_wide, casts_back).plan()


def is_narrowed(formats: Formats, node: Node) -> bool:
    """Whether the source asks for a narrow dtype at a conversion, whatever is given."""
    if node.name != "convert_element_type" or node.is_backward:
        return False
    is_narrow = formats.rounds(node.eqn.outvars[0].aval.dtype)
    return is_narrow and is_explicit(node.stack) and not is_following(node.stack)


class _Type(NamedTuple):
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


class _Types:
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
        program: Program,
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

    def plan(self) -> Plan:
        block = self._program.block
        given = [
            _Type(self._is_given_wide and is_inexact(x))
            for x in self._program.jaxpr.in_avals
        ]
        made = self._run(block, given)
        self._added(block.number, made)
        rounded = frozenset(use for use, is_due in self._rounded.items() if is_due)
        is_wide = self._is_given_wide
        return Plan(self._entries, is_wide, is_wide, self._carried, rounded)

    def _run(self, block: Block, given: Sequence[_Type]) -> list[_Type]:
        consts = len(block.inputs) - len(given)
        known = dict(zip(block.inputs, [*[_Type()] * consts, *given]))
        for node in block.nodes:
            values = [_Type() if hasattr(v, "val") else known[v] for v in node.eqn.invars]
            known |= zip(node.eqn.outvars, self._node(node, values))
        return [_Type() if hasattr(v, "val") else known[v] for v in block.outputs]

    def _node(self, node: Node, values: list[_Type]) -> Sequence[_Type]:
        rule = node.rule
        if rule in ("call", "custom_linear_solve"):
            if rule == "custom_linear_solve":
                values = solved(node, values)
            return self._run(node.inner[0], values)
        if rule in _JOINING:
            return self._joined(node, self._added(node.number, values))
        if rule in ("reduce_precision", "stochastic"):
            if self._wants_wide(node, values) and not self._program.formats.is_own:
                self._entries[node.number] = WIDE
                return [_Type(is_inexact(v.aval)) for v in node.eqn.outvars]
            return [_Type()] * len(node.eqn.outvars)
        if rule != COMPUTED:
            return [_Type()] * len(node.eqn.outvars)
        return self._computed(node, values)

    def _wants_wide(self, node: Node, values: Sequence[_Type]) -> bool:
        return self._is_wide(node, any(value.is_wide for value in values))

    def _computed(self, node: Node, values: list[_Type]) -> list[_Type]:
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
        made = [
            _Type(wide and is_inexact(var.aval), line=node.line) for var in node.eqn.outvars
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

    def _added(
        self, number: int, values: Sequence[_Type], line: int | None = None
    ) -> list[_Type]:
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
            made.append(_Type() if is_rounded else value)
        return made

    def _joined(self, node: Node, values: list[_Type]) -> list[_Type]:
        """The results of a loop, of branches or of shards, wide if one way is."""
        count = len(node.eqn.outvars)
        wide = [False] * count

        def join(block: Block, given: Sequence[_Type]) -> None:
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
                known = [*map(_Type, wide[:carried])]
                join(node.inner[0], [*outside, *known, *xs])
                if [value.is_wide for value in known] == wide[:carried]:
                    break
            if node.rule == "while":
                self._run(node.inner[1], [*values[:before], *known])
        self._carried[node.number] = tuple(wide)
        return [*map(_Type, wide)]


def _shape(var: Any) -> tuple[int, ...]:
    return getattr(var.aval, "shape", ())


_JOINING = frozenset(["scan", "while", "cond", "shard_map"])


def solved(node: Node, values: Sequence[Any]) -> list[Any]:
    """The operands of the solver of a `custom_linear_solve`."""
    sizes = [size or 0 for size in node.eqn.params["const_lengths"]]
    first = sum(sizes[:2])
    return [*values[first : first + sizes[2]], *values[sum(sizes) :]]
