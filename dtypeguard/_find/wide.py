"""Which operations compute in 64 bits although nothing that is given has 64 bits."""

import dataclasses
from collections.abc import Iterator

from .._leaves.dtypes import is_weak, is_wide
from .._leaves.rows import describe
from .._program.lines import Lines, line_of
from .._program.origins import Origin
from .._program.trace import Program


@dataclasses.dataclass(frozen=True)
class WideOperation:
    """A 64-bit floating operation in a program that was given nothing of 64 bits.

    Attributes:
        primitive: its name.
        type: what it gives: "float64[]", "float64[3,2]".
        is_array: whether that is more than a scalar.
        origin: the line of it.
    """

    primitive: str
    type: str
    is_array: bool
    origin: Origin | None


def find(program: Program, lines: Lines | None) -> Iterator[WideOperation]:
    """The floating operations of a program that are in 64 bits."""
    del lines  # each operation has a line of its own
    if any(is_wide(aval) and not is_weak(aval) for aval in program.given):
        return
    graphs = [program.first, program.step] if program.is_optimizer else [program.step]
    for graph in filter(None, graphs):
        for value, equation in graph.made_by.items():
            aval = graph.avals[value]
            if str(getattr(aval, "dtype", "")) in ("float64", "complex128"):
                made = describe(aval).removesuffix(",weak")
                is_array, line = aval.shape != (), line_of(equation)
                yield WideOperation(equation.primitive, made, is_array, line)
