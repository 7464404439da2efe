"""A traced program whose equations have numbers, and the lines at which these round."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from .._leaves.dtypes import kind
from .._leaves.types import DType, Jaxpr
from .._program.aligned import SecondTraces
from .._program.jaxprs import Stack, Variable, is_literal
from .._program.program import WHILE, Block, Node
from .._source.origin import Origin
from .._tracebacks.written import Written
from .annotation import Annotation, numbers_in_dtype
from .formats import IEEE_FLOAT32, Formats
from .lines import NOWHERE, Line, key_of_line
from .primitives import (
    COMPUTED,
    OWN,
    ROUNDINGS,
    has_no_wide_form,
    is_inexact,
    moves,
)

# What is made once for all runs, by what it is made of.
_Made = dict[object, Any]


class NumericProgram:
    """A traced program, of which each equation has a number.

    Attributes:
        lines: those at which it rounds.
        size: how many numbers there are.
        unexamined: the primitives that run as written, since they have no wide form, each
            with its lines.
        backward: the dtypes that a backward pass has.
        literals: the numbers in its equations, as values.
        functions: what evaluates equations, loops and branches.
        while_loops: the loops that turn as often as they decide.

    Args:
        jaxpr: a closed jaxpr.
        formats: its dtypes.
        traces: it beside other traces of the function, as far as there are any.
        is_judged: whether it is compared with a reference, which has the eps of its dtype.
    """

    def __init__(
        self,
        jaxpr: Jaxpr,
        formats: Formats,
        traces: SecondTraces,
        is_judged: bool = False,
    ):
        self.jaxpr = jaxpr
        self.formats = formats
        self.lines: list[Line] = []
        self._line_numbers: dict[Hashable, int] = {}
        self.unexamined: dict[tuple[str, Origin | None], None] = {}
        self.backward: set[np.dtype] = set()
        self.literals: _Made = {}
        self.functions: _Made = {}
        # Only `narrow` rounds inputs: else they are as the caller has them, and fixed, so
        # that what is drawn with them is a sample.
        is_fixed = formats.narrow is None
        if not is_fixed:
            self._note_inputs()
        self.block = Block(jaxpr, traces=traces)
        annotation = Annotation(formats, is_judged)
        arguments = [is_fixed for _ in jaxpr.in_avals]
        annotation.block(self.block, arguments)
        self.size = number_nodes(self.block)
        self.while_loops: list[Node] = []
        for node in self.block.all_nodes():
            self._note_line(node)
            if node.rule == WHILE:
                self.while_loops.append(node)
        # A second pass, since an equation that rounds nothing may stand on a line that
        # rounds at a later one.
        for node in self.block.all_nodes():
            key = key_of_line(node.stack)
            node.line = self._line_numbers.get(key)

    def leave_out(self, stack: Stack) -> None:
        """Notes that an equation runs as written."""
        name = stack[0].primitive.name
        origin = Written(stack).origin
        self.unexamined[name, origin] = None

    # Lines

    def _line_of(self, stack: Stack) -> Line:
        """Returns the line of an equation; a new one if there is none yet."""
        written = Written(stack)
        key = key_of_line(stack)
        if key not in self._line_numbers:
            self._line_numbers[key] = len(self.lines)
            self.lines.append(Line(written.origin or NOWHERE))
        line = self.lines[self._line_numbers[key]]
        if written.cast_of_ours is not None:
            line.casts[written.cast_of_ours] = None
        return line

    def _note_inputs(self) -> None:
        """Makes the first line, which stands for the inputs."""
        line = Line(None)
        self.lines.append(line)
        for aval in self.jaxpr.in_avals:
            written = self.formats.written(aval.dtype)
            if written != aval.dtype:
                line.dtypes.add(str(written))

    def _note_line(self, node: Node) -> None:
        """Notes at its line what an equation rounds."""
        eqn = node.eqn
        dtypes = self._dtypes_as_written(eqn.outvars)
        # The range of these dtypes tells whether scaling the loss can help.
        if node.is_backward:
            self.backward.update(dtypes)
        if node.rule == OWN and has_no_wide_form(eqn):
            self.leave_out(node.stack)
        self._note_numbers(node)
        node.rounds = self._is_rounding(node, dtypes)
        if not node.rounds:
            return
        line = self._line_of(node.stack)
        algorithm = self.formats.algorithm(eqn, is_wide=False)
        if algorithm is not None:
            # A device rounds the operands, so the dtype of the result says nothing.
            precision = eqn.params.get("precision")
            line.has_asked |= precision is not None
            line.note(node.stack, [algorithm.name])
        else:
            line.note(node.stack, map(str, dtypes))

    def _note_numbers(self, node: Node) -> None:
        """Notes the numbers that an equation rounds."""
        # They are rounded where they are used, if the equation there rounds or not.
        eqn = node.eqn
        constants = []
        for place, constant in node.intended.items():
            constants.append((constant, eqn.invars[place]))
        if node.constant is not None:
            (result,) = eqn.outvars
            constants.append((node.constant, result))
        for constant, var in constants:
            dtype = self.formats.written(var.aval.dtype)
            if kind(dtype) != "float" or not self.formats.rounds(dtype):
                continue
            numbers = np.ravel(constant)
            rounded = numbers_in_dtype(numbers, dtype)
            if is_literal(var) and dtype == var.aval.dtype:
                # A limit of a dtype does not round to that of another one.
                rounded = np.ravel(var.val)
            line = self._line_of(node.stack)
            line.dtypes.add(str(dtype))
            line.constants.append((numbers, rounded))

    def _is_rounding(self, node: Node, dtypes: Sequence[DType]) -> bool:
        """Returns whether an equation rounds as written, where it has a wide form."""
        eqn = node.eqn
        formats = self.formats
        if node.rule not in ROUNDINGS | {COMPUTED}:
            return False
        # All but the products is the same on both sides there.
        if formats.products is not None:
            algorithm = formats.algorithm(eqn, is_wide=False)
            return algorithm not in (None, IEEE_FLOAT32)
        if not dtypes:
            return False
        # A number that is only moved was rounded where it was made.
        if moves(eqn, formats.written):
            return False
        operand_dtypes = self._dtypes_as_written(eqn.invars)
        return any(map(formats.rounds, [*dtypes, *operand_dtypes]))

    def _dtypes_as_written(self, variables: Sequence[Variable]) -> list[DType]:
        """Returns the dtypes of floating and complex values as written."""
        dtypes = []
        for var in variables:
            if is_inexact(var.aval):
                dtypes.append(self.formats.written(var.aval.dtype))
        return dtypes


def number_nodes(block: Block, number: int = 0) -> int:
    """Numbers a block and all inside of it; returns the next number."""
    # Inner blocks come first, so that all inside of a node is a range of numbers.
    block.first = number
    for node in block.nodes:
        for inner in node.inner:
            number = number_nodes(inner, number)
        node.number = number
        number += 1
    block.number = number
    return number + 1
