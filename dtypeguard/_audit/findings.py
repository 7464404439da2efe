"""What an audit finds beside drift: operations in 64 bits, and constants that change."""

import dataclasses
from collections.abc import Iterator, Sequence

from .._carry.split import changed_constants
from .._leaves.arguments import shown
from .._leaves.dtypes import bits, is_python_number, is_weak, is_wide
from .._leaves.rows import type_text
from .._leaves.types import Aval
from .._lines.why import line_of
from .._program.graph import Equation
from .._program.trace import Program
from .._source.origin import Origin


@dataclasses.dataclass(frozen=True)
class WideOperation:
    """A 64-bit floating-point operation in a program without 64-bit inputs."""

    primitive: str
    type: str  # of its result: "float64[]", "float64[3,2]"
    is_array: bool
    origin: Origin | None


@dataclasses.dataclass(frozen=True)
class ChangedConstant:
    """A leaf of a carry that is no array and comes back as another value.

    `equinox.filter_jit` holds it as a constant of the program: the Python numbers of an
    Equinox module, functions and strings.
    """

    path: str  # begins with the name of the parameter
    before: str  # its value before the step
    after: str
    is_number: bool = dataclasses.field(default=False, repr=False)  # of Python, no bool

    def __str__(self) -> str:
        remedy = f": begin with jnp.asarray({self.before})" * self.is_number
        return (
            f"{self.path} is {self.before}, then {self.after}: a constant of the program, "
            f"which compiles anew for each value{remedy}"
        )


def wide_operations(program: Program) -> Iterator[WideOperation]:
    """Yields the operations in 64 bits, if neither an input nor a policy asks for them."""
    is_input = lambda aval: is_wide(aval) and not is_weak(aval)
    if program.asks_wide or any(map(is_input, program.given)):
        return
    for aval, equation in _wide(program):
        is_array, line = aval.shape != (), line_of(equation)
        yield WideOperation(equation.primitive, type_text(aval), is_array, line)


def _wide(program: Program) -> Iterator[tuple[Aval, Equation]]:
    graphs = [program.first, program.step] if program.is_optimizer else [program.step]
    for graph in filter(None, graphs):
        for value, equation in graph.made_by.items():
            aval = graph.avals[value]
            if bits(getattr(aval, "dtype", None)) == 64:
                yield aval, equation


def wide_summary(found: Sequence[WideOperation]) -> str:
    """How many operations compute in 64 bits, and on which lines; empty if none does."""
    if not found:
        return ""
    arrays = sum(each.is_array for each in found)
    lines = dict.fromkeys(str(each.origin) for each in found if each.origin)
    first = ", ".join(list(lines)[:3]) + (", ..." if len(lines) > 3 else "")
    operations = "1 operation" if len(found) == 1 else f"{len(found)} operations"
    return f"{operations} in 64 bits though no input is ({arrays} on arrays): {first}"


def constants(program: Program) -> Iterator[ChangedConstant]:
    """Yields the constants of the carry that change: a jitted step compiles anew."""
    for name, before, after in zip(program.names, program.carried, program.returned):
        for path, old, new in changed_constants(before, after):
            is_number = is_python_number(old) and type(old) is not bool
            yield ChangedConstant(name + path, shown(old), shown(new), is_number)


def constants_summary(found: Sequence[ChangedConstant]) -> str:
    """The first of them and their number; empty if there is none."""
    more = f" (and {len(found) - 1} more)" if found[1:] else ""
    return f"{found[0]}{more}." if found else ""
