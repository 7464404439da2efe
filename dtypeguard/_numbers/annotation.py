"""Notes of a program how each equation is run, and its constants as they were meant."""

from collections.abc import Callable, Sequence

import numpy as np

from .._leaves.dtypes import bits, kind
from .._leaves.types import Equation, Jaxpr
from .._program.aligned import SecondTraces
from .._program.jaxprs import Stack, Variable, open_jaxpr, value_kind
from .._program.program import Node
from .._program.walk import Walk
from .._tracebacks.written import Written
from . import primitives
from .constants import is_plain, is_scalar_literal, numbers_in_dtype, shortest_decimal
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

# Of a value before the program runs: whether it is fixed, so that no line rounds it, or the
# Python number that it is, which is fixed.
_Known = bool | float


class Annotation(Walk[_Known]):
    """Notes how each equation is run, and its constants as they were meant.

    Args:
        formats: the dtypes of the program.
        is_judged: whether it is compared with a reference.
        leave_out: is told of an equation that has no wide form.
    """

    def __init__(
        self,
        formats: Formats,
        is_judged: bool,
        leave_out: Callable[[Stack], None],
    ):
        self._formats = formats
        self._is_judged = is_judged
        self._leave_out = leave_out

    def constant(self, var, array):
        # What a function closes over was rounded, if at all, before the program began.
        if value_kind(var.aval) == "float" and is_scalar_literal(var):
            return float(array)
        return True

    def joined(self, values, attempt):
        return False

    def crossing(self, value, aval):
        # What enters a loop or a branch may be another value each time.
        return False

    def entering(self, node, operands) -> list[_Known]:
        return [False for _ in operands]

    def computed(self, node, operands):
        return ()

    def block(self, block, arguments):
        # A callback that prints would print once more with each run.
        nodes = block.nodes
        block.nodes = []
        for node in nodes:
            if node.name not in primitives.DEBUG:
                block.nodes.append(node)
        jaxpr = open_jaxpr(block.jaxpr)
        block.intended = self._meant(block.traces, block.outputs, jaxpr)
        results = super().block(block, arguments)
        block.drop_unused()
        return results

    def node(self, node, operands):
        self._note_constants(node)
        # `jax.random` draws the same numbers on both sides if nothing rounds its operands.
        is_fixed = _are_fixed(node, operands)
        node.rule = rule_of(node, is_fixed, self._formats)
        if node.rule in WITHOUT_BLOCKS:
            # It runs as one equation, whatever jaxprs it holds.
            node.inner = ()
        if node.rule == OWN and has_no_wide_form(node.eqn):
            self._leave_out(node.stack)
        if node.name == "convert_element_type" and node.rule == COMPUTED:
            node.constant = self._rounded_number(node, operands[0])
        super().node(node, operands)
        # A sample is the same on both sides, whatever dtypes the program has.
        is_sample = node.rule == SAMPLE
        return [is_sample for _ in node.eqn.outvars]

    def _note_constants(self, node: Node) -> None:
        """Notes the constants of an equation as they were meant."""
        if has_reference(node.eqn):
            # A plan runs a program often, and each run would find another value there.
            raise TypeError(
                "audit_precision does not run programs with mutable references "
                f"({node.name}): give it a function that returns new arrays."
            )
        # Random numbers are the same sample whatever they are compared with.
        if Written(node.stack).is_of_sampler:
            return
        eqn = node.eqn
        traces = node.block.traces
        node.intended = self._meant(traces, eqn.invars, eqn)
        node.doubtful = self._doubtful(node)

    def _meant(
        self, traces: SecondTraces, variables: Sequence[Variable], user: Equation | Jaxpr
    ) -> dict[int, np.ndarray]:
        """Returns the constants among variables that were meant as different numbers."""
        constants = {}
        for place, var in enumerate(variables):
            if not self._formats.rounds(getattr(var.aval, "dtype", None)):
                continue
            value = traces.wide.intended_constant(user, place, self._is_judged)
            # A float32 number has lost digits of the source's decimal in any trace.
            if value is None and is_scalar_literal(var) and var.aval.dtype == np.float32:
                value = np.asarray(var.val)
            if value is None:
                continue
            # 0.1 in float32 is 0.100000001: the source has 0.1.
            if not value.ndim:
                value = np.asarray(shortest_decimal(value))
            constants[place] = value
        return constants

    def _doubtful(self, node: Node) -> list[np.ndarray]:
        """Returns the 16-bit constants of an equation that may have been rounded before.

        They are as narrow in the trace of float32 arguments, or that has no such equation.
        """
        aligned = node.block.traces.wide
        unknown = []
        eqn = node.eqn
        for place, var in enumerate(eqn.invars):
            value = aligned.doubtful_constant(eqn, place)
            if is_scalar_literal(var) and aligned.partner(eqn) is None:
                value = np.asarray(var.val, var.aval.dtype)
            # 2.0 and 0.5 are the same in any dtype.
            if value is not None and 0 < bits(value.dtype) < 32 and not is_plain(value):
                unknown.append(value)
        return unknown

    def _rounded_number(self, node: Node, operand: _Known) -> float | None:
        """Returns the number that a conversion rounds, if it does."""
        if isinstance(operand, bool):
            return None
        result = node.eqn.outvars[0].aval
        dtype = self._formats.written(result.dtype)
        if kind(dtype) != "float":
            return None
        if not self._formats.rounds(dtype):
            return None
        # As it was meant, where a dtype of the arguments has rounded it before.
        intended = node.intended.get(0, operand)
        number = float(intended)
        if numbers_in_dtype(number, dtype) == number:
            return None
        return number


def _are_fixed(node: Node, operands: Sequence[_Known]) -> bool:
    """Returns whether no line rounds an operand."""
    for var, operand in zip(node.eqn.invars, operands):
        if operand is not False:
            continue
        if is_inexact(var.aval):
            return False
    return True
