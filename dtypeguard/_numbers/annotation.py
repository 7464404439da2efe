"""Notes of a program how each equation is run, and its constants as they were meant."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .._leaves.dtypes import kind
from .._leaves.types import Aval, Equation
from .._program.jaxprs import Stack, Variable, value_kind
from .._program.program import CALL, Block, Node
from .._program.walk import Walk
from . import primitives
from .constants import (
    doubtful_constants,
    meant_constants,
    number_in_dtype,
)
from .formats import Formats
from .nodes import (
    COMPUTED,
    OWN,
    SAMPLE,
    WITHOUT_BLOCKS,
    has_no_wide_form,
    has_reference,
    rule_of,
)
from .primitives import is_inexact


class _Known(NamedTuple):
    """What is known of a value before the program runs.

    Attributes:
        is_fixed: whether no line rounds it.
        number: the Python number that it is.
    """

    is_fixed: bool
    number: float | None = None


_UNKNOWN = _Known(False)


class Annotation(Walk[_Known]):
    """Notes how each equation is run, and its constants as they were meant.

    Args:
        formats: the dtypes of the program.
        is_measured: whether its lines are to be known. To emit it needs none.
        is_judged: whether it is compared with a reference.
        leave_out: is told of an equation that has no wide form.
    """

    def __init__(
        self,
        formats: Formats,
        is_measured: bool,
        is_judged: bool,
        leave_out: Callable[[Stack], None],
    ):
        self._formats = formats
        self._is_measured = is_measured
        self._is_judged = is_judged
        self._leave_out = leave_out

    def annotate(self, block: Block, avals: Sequence[Aval]) -> None:
        """Notes it in a whole program.

        Args:
            block: the program.
            avals: its arguments.
        """
        # The first line stands for arguments that are rounded.
        argument = _Known(is_fixed=self._formats.narrow is None)
        self.block(block, [argument for _ in avals])

    def enter(self, block, arguments):
        # What a function closes over was rounded, if at all, before the program began.
        constants = [_Known(True) for _ in block.consts]
        return dict(zip(block.inputs, [*constants, *arguments]))

    def literal(self, var):
        if value_kind(var.aval) != "float" or np.ndim(var.val):
            return _Known(True)
        return _Known(True, float(np.asarray(var.val)))

    def block(self, block, arguments):
        if self._is_measured:
            nodes = [node for node in block.nodes if node.name not in primitives.DEBUG]
            # A callback that prints would print once more with each run.
            block.nodes = nodes
            block.intended = self._meant(block, block.outputs, None)
        results = super().block(block, arguments)
        block.drop_unused()
        return results

    def node(self, node, operands):
        if self._is_measured:
            self._note_constants(node)
            # A conversion that rounds a number is asked of the number as it was meant.
            operands = self._as_meant(node, operands)
        # `jax.random` draws the same numbers on both sides if nothing rounds its operands.
        is_fixed = self._is_measured and _are_fixed(node, operands)
        node.rule = rule_of(node, is_fixed, self._formats)
        if node.rule in WITHOUT_BLOCKS:
            # It runs as one equation, whatever jaxprs it holds.
            node.inner = ()
        if node.rule == OWN and has_no_wide_form(node.eqn):
            self._leave_out(node.stack)
        if node.name == "convert_element_type" and node.rule == COMPUTED:
            node.constant = self._rounded_number(node, operands[0].number)
        for block in node.inner:
            # A call gets the same values each time, so what is known of them holds inside.
            if node.rule == CALL:
                self.block(block, [_Known(is_fixed, x.number) for x in operands])
            else:
                # What enters may be another value in each turn, or in each branch.
                arguments = block.inputs[len(block.consts) :]
                self.block(block, [_UNKNOWN for _ in arguments])
        # A sample is the same on both sides, whatever dtypes the program has.
        result = _Known(node.rule == SAMPLE)
        return [result for _ in node.eqn.outvars]

    def _note_constants(self, node: Node) -> None:
        """Notes the constants of an equation as they were meant."""
        if has_reference(node.eqn):
            # A plan runs a program often, and each run would find another value there.
            raise TypeError(
                "audit_precision does not run programs with mutable references "
                f"({node.name}): give it a function that returns new arrays."
            )
        node.intended = self._meant(node, node.eqn.invars, node.eqn)
        node.doubtful = doubtful_constants(node.traces.wide, node.eqn, node.stack)

    def _meant(
        self, user: Node | Block, variables: Sequence[Variable], eqn: Equation | None
    ) -> dict[int, np.ndarray]:
        return meant_constants(
            user.traces.wide,
            variables,
            eqn,
            user.stack,
            self._formats,
            self._is_judged,
        )

    def _as_meant(self, node: Node, operands: list[_Known]) -> list[_Known]:
        """Returns the operands with the Python numbers among them as they were meant."""
        result: list[_Known] = []
        for place, operand in enumerate(operands):
            if operand.number is not None and place in node.intended:
                operand = _Known(operand.is_fixed, float(node.intended[place]))
            result.append(operand)
        return result

    def _rounded_number(self, node: Node, number: float | None) -> float | None:
        """Returns the number that a conversion rounds, if it does."""
        dtype = self._formats.written(node.eqn.outvars[0].aval.dtype)
        if number is None or kind(dtype) != "float":
            return None
        return None if number_in_dtype(number, dtype) == number else number


def _are_fixed(node: Node, operands: Sequence[_Known]) -> bool:
    """Returns whether no line rounds an operand."""
    for var, operand in zip(node.eqn.invars, operands):
        if not operand.is_fixed and is_inexact(var.aval):
            return False
    return True
