"""Finds the constants in a carry that a step changes: a jitted step compiles anew."""

import dataclasses
from collections.abc import Iterator, Sequence

from .._carry.split import changed_constants
from .._leaves.arguments import shown
from .._leaves.dtypes import is_python_number
from .._lines.why import ProgramLines
from .._program.trace import Program


@dataclasses.dataclass(frozen=True)
class ChangedConstant:
    """A leaf of a carry that is no array and comes back as another value.

    `equinox.filter_jit` holds it as a constant of the program: the Python numbers of an
    Equinox module, functions and strings.

    Attributes:
        path: of the leaf, which begins with the name of the parameter.
        before: its value before the step.
        after: its value after the step.
        is_number: whether it is a Python number that could be an array: no bool.
    """

    path: str
    before: str
    after: str
    is_number: bool = dataclasses.field(default=False, repr=False)

    def __str__(self) -> str:
        remedy = f": begin with jnp.asarray({self.before})" * self.is_number
        return (
            f"{self.path} is {self.before}, then {self.after}: a constant of the program, "
            f"which compiles anew for each value{remedy}"
        )


def find(program: Program, lines: ProgramLines | None = None) -> Iterator[ChangedConstant]:
    """Yields the constants of the carry that change."""
    for name, before, after in zip(program.names, program.carried, program.returned):
        for path, old, new in changed_constants(before, after):
            is_number = is_python_number(old) and type(old) is not bool
            yield ChangedConstant(name + path, shown(old), shown(new), is_number)


def summary(found: Sequence[ChangedConstant]) -> str:
    """The first of them and their number; empty if there is none."""
    if not found:
        return ""
    return f"{found[0]}{f' (and {len(found) - 1} more)' if found[1:] else ''}."
