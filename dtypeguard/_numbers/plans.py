"""Plans: what each equation of a program computes in, as data that is made on the host."""

from collections.abc import Callable, Collection

import numpy as np

from .formats import Formats
from .nodes import Node
from .program import NumericProgram
from .propagate import ROUNDED, WIDE, WideLines, WidthPlan


def written(program: NumericProgram) -> WidthPlan:
    """Every equation as written."""
    return WidthPlan(np.zeros(program.size, np.int8), False, False)


def wide(program: NumericProgram) -> WidthPlan:
    """Every equation in wide types, explicit casts as well."""
    return WidthPlan(np.full(program.size, WIDE, np.int8), True, True)


def rounding(program: NumericProgram, lines: Collection[int]) -> WidthPlan:
    """Some lines round what they make, and all else is wide; so may the inputs."""
    chosen = {*lines}
    entries = np.full(program.size, WIDE, np.int8)
    for node in program.block.all_nodes():
        if node.line in chosen:
            entries[node.number] = ROUNDED
    is_given = program.formats.narrow is not None and 0 in chosen
    return WidthPlan(entries, not is_given, True)


def constant(program: NumericProgram, line: int, meant: float) -> WidthPlan:
    """One Python number is rounded, and all else is wide."""
    return wide(program)._replace(constants=frozenset([(line, meant)]))


def chosen_wide(
    program: NumericProgram,
    is_wide: Callable[[Node, bool], bool],
    is_given_wide: bool = False,
) -> WidthPlan:
    """The equations that a rule chooses, and what must be wide between them."""
    return WideLines(program, is_wide, is_given_wide).plan()


def wide_lines(program: NumericProgram, lines: Collection[int], keeps: bool) -> WidthPlan:
    """Some lines wide in the source, and so what is made of what they make, or not.

    The backward pass of a line is as wide as the line.

    Args:
        program: the program.
        lines: their numbers.
        keeps: whether what they make stays wide, up to an explicit cast; otherwise it is
            cast back where another line uses it.
    """
    are_wide = {*lines}

    def is_wide(node: Node, has_wide: bool) -> bool:
        if node.line in lines:
            return True
        if node.name == "add_any":  # of gradients
            return has_wide
        if node.is_backward and node.line is not None:
            return node.line in are_wide
        if not keeps or node.is_of_ours:
            return False
        is_kept = has_wide and not is_narrowed(program.formats, node)
        if is_kept and node.line is not None:
            are_wide.add(node.line)
        return is_kept

    is_given = program.formats.narrow is not None and 0 in lines
    # As if all were narrow, lines stay wide, and what is narrow rounds what it is given.
    casts_back = not keeps and program.formats.narrow is None
    return WideLines(program, is_wide, is_given, casts_back).plan()


def is_narrowed(formats: Formats, node: Node) -> bool:
    """Whether the source asks for a narrow dtype at a conversion, whatever is given."""
    if node.name != "convert_element_type" or node.is_backward:
        return False
    is_narrow = formats.rounds(node.eqn.outvars[0].aval.dtype)
    return is_narrow and node.is_asked
