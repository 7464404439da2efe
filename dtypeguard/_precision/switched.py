"""A program that XLA compiles once, with a switch for each line that a plan may keep wide.

It ranks lines: between equations, all numbers are in float32. The rows of a curve carry
them in the dtypes themselves.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from .._leaves.types import Leaf
from .._numbers.arithmetic import Arithmetic
from .._numbers.compiled import call_compiled
from .._numbers.formats import Formats
from .._numbers.nodes import Noted
from .._numbers.plans import WRITTEN, WidthPlan
from .._numbers.probes import Probes
from .._numbers.program import NumericProgram
from .._numbers.run import Run, Switch


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
    narrow = widths._replace(carried={})
    plan = narrow.with_all(WRITTEN)
    formats = Formats(program.formats.wide)
    key = object()  # no other part of the program computes the same

    def compute(is_narrow: Leaf, arrays: Sequence[Leaf]) -> tuple[list[Leaf], Noted]:
        arithmetic = Arithmetic(program, formats, True, scale)
        run = Run(plan, Probes(), arithmetic, Switch(is_narrow, narrow))
        return run.outputs(arrays), {}

    def run_switched(wide: Collection[int], *arrays: Leaf) -> list[Leaf]:
        # An array, not constants: all sets of switches are one compiled program.
        is_narrow = np.ones(program.size, bool)
        is_narrow[list(wide)] = False
        inputs = [is_narrow, arrays]
        return call_compiled(program, key, compute, inputs, Probes())

    return run_switched
