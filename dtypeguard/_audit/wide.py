"""Finds the operations that compute in 64 bits although no input is 64-bit."""

import dataclasses
from collections.abc import Iterator, Sequence

from .._leaves.dtypes import bits, is_weak, is_wide
from .._leaves.rows import describe
from .._leaves.types import Aval
from .._lines.why import ProgramLines, line_of
from .._program.graph import Equation
from .._program.trace import Program
from .._source.origin import Origin


@dataclasses.dataclass(frozen=True)
class WideOperation:
    """A 64-bit floating-point operation in a program without 64-bit inputs.

    Attributes:
        primitive: its name.
        type: of its result: "float64[]", "float64[3,2]".
        is_array: whether the result is an array rather than a scalar.
        origin: its line.
    """

    primitive: str
    type: str
    is_array: bool
    origin: Origin | None


def find(program: Program, lines: ProgramLines | None) -> Iterator[WideOperation]:
    """Yields the 64-bit floating-point operations of a program without 64-bit inputs.

    A policy that asks for 64 bits counts as such an input.
    """
    is_input = lambda aval: is_wide(aval) and not is_weak(aval)
    if program.asks_wide or any(map(is_input, program.given)):
        return
    found = list(_operations(program))
    for aval, equation in found:
        made = describe(aval).removesuffix(",weak")
        yield WideOperation(equation.primitive, made, aval.shape != (), line_of(equation))


def _operations(program: Program) -> Iterator[tuple[Aval, Equation]]:
    graphs = [program.first, program.step] if program.is_optimizer else [program.step]
    for graph in filter(None, graphs):
        for value, equation in graph.made_by.items():
            aval = graph.avals[value]
            if bits(getattr(aval, "dtype", None)) == 64:
                yield aval, equation


def summary(found: Sequence[WideOperation]) -> str:
    """How many operations compute in 64 bits, and on which lines; empty if none does."""
    if not found:
        return ""
    arrays = sum(each.is_array for each in found)
    lines = dict.fromkeys(str(each.origin) for each in found if each.origin)
    first = ", ".join(list(lines)[:3]) + (", ..." if len(lines) > 3 else "")
    operations = "1 operation" if len(found) == 1 else f"{len(found)} operations"
    return f"{operations} in 64 bits though no input is ({arrays} on arrays): {first}"
