"""A program that XLA compiles once, with a switch for each line that a plan may keep wide.

It ranks lines: between equations, all numbers are in float32. The rows of a curve carry
them in the dtypes themselves.
"""

from .._leaves.types import Function, Leaf
from .._numbers.arithmetic import Arithmetic
from .._numbers.compiled import call_compiled
from .._numbers.formats import Formats
from .._numbers.plans import WRITTEN, WidthPlan
from .._numbers.primitives import Noted, Results
from .._numbers.probes import Probes
from .._numbers.program import NumericProgram
from .._numbers.run import Run, Switch
from .._program.jaxprs import Arrays


def switched_program(
    program: NumericProgram, widths: WidthPlan, scale: float | None
) -> Function:
    """Returns a function that runs a program by a plan, with some equations switched wide.

    It takes which equations are narrow, by their numbers, and the inputs of the program.

    Args:
        program: the program.
        widths: what its equations compute in where they are not.
        scale: of the loss, if it has one.
    """
    # Values stay in their own dtypes between equations: no switch changes a type.
    narrow = widths._replace(carried={})
    key = object()  # no other part of the program computes the same

    def compute(is_narrow: Leaf, arrays: Arrays) -> tuple[Results, Noted]:
        run = Run(
            narrow.with_all(WRITTEN),
            Probes(),
            Arithmetic(program, Formats(program.formats.wide), True, scale),
            Switch(is_narrow, narrow),
        )
        return run.outputs(arrays), {}

    def run_switched(is_narrow: Leaf, *arrays: Leaf) -> Results:
        # Arrays, not constants: all sets of switches are one compiled program.
        return call_compiled(program, key, compute, [is_narrow, arrays], Probes())

    return run_switched
