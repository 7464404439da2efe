"""A program that XLA compiles once, with a switch for each line that a plan may keep wide.

It ranks lines: narrow numbers are float32 ones of as many digits, and to compute in both
dtypes takes three times as long to compile. The rows of a curve run in the dtypes
themselves.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.dtypes import bits, kind
from .._leaves.types import DType, Leaf
from .._numbers.arithmetic import Arithmetic, Value, Width, own_form
from .._numbers.compiled import call_compiled
from .._numbers.evaluate import round_to
from .._numbers.formats import Formats
from .._numbers.nodes import Noted
from .._numbers.plans import WRITTEN, Computes, WidthPlan
from .._numbers.probes import Probes
from .._numbers.program import NumericProgram
from .._numbers.run import Run
from .._program.program import Node


@dataclasses.dataclass
class _SwitchedArithmetic(Arithmetic):
    """Rounds what a plan makes narrow, but for the equations that are switched wide.

    Attributes:
        is_wide: the switch of each equation, by its number.
    """

    is_wide: Leaf

    def computed(self, node: Node, values: Sequence[Value], entry: Width):
        if not isinstance(entry, Computes):
            return super().computed(node, values, entry)
        operands: list[Value] = []
        for value in values:
            array = own_form(value)
            operand = self._with_switch(node, array, entry.dtype)
            operands.append(operand)
        operands, exact_results = super().computed(node, operands, WRITTEN)
        results: list[Leaf] = []
        for array in exact_results:
            result = self._with_switch(node, array, entry.result)
            results.append(result)
        return operands, results

    def _with_switch(self, node: Node, array: Leaf, dtype: DType) -> Leaf:
        """Returns an operand or a result with the digits of a dtype, if it is narrower."""
        # What moves numbers has the digits that they have.
        if not node.rounds or kind(array.dtype) != "float":
            return array
        if bits(dtype) >= bits(array.dtype):
            return array
        if node.is_backward and self.scale is not None:
            # Gradients of a scaled loss keep their digits, however small they are.
            range_bits = jnp.finfo(array.dtype).nexp
            digits = jnp.finfo(dtype).nmant
            rounded = lax.reduce_precision(array, range_bits, digits)
        else:
            rounded = round_to(array, dtype)
        is_wide = self.is_wide[node.number]
        return jnp.where(is_wide, array, rounded)


def switched_program(
    program: NumericProgram, widths: WidthPlan, scale: float | None
) -> Callable[..., list[Leaf]]:
    """Returns a function that runs a program by a plan, with some equations switched wide.

    It takes the numbers of these equations, and the inputs of the program.

    Args:
        program: the program.
        widths: what its equations compute in where they are not.
        scale: of the loss, if it has one.
    """
    # Values stay in their own dtypes between equations: no switch changes a type.
    plan = widths._replace(carried={})
    formats = Formats(program.formats.wide)
    key = object()  # no other part of the program computes the same

    def compute(is_wide: Leaf, arrays: Sequence[Leaf]) -> tuple[list[Leaf], Noted]:
        arithmetic = _SwitchedArithmetic(
            program=program,
            formats=formats,
            is_traced=True,
            scale=scale,
            is_wide=is_wide,
        )
        run = Run(plan, Probes(), arithmetic)
        return run.outputs(arrays), {}

    def run_switched(wide: Collection[int], *arrays: Leaf) -> list[Leaf]:
        # An array, not constants: all sets of switches are one compiled program.
        is_wide = np.zeros(program.size, bool)
        is_wide[list(wide)] = True
        inputs = [is_wide, arrays]
        return call_compiled(program, key, compute, inputs, Probes())

    return run_switched
