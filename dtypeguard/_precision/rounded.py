"""What was rounded before the program saw it: arguments, and constants of 16 bits."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits, kind
from .._leaves.types import DType, Leaf
from .._numbers.constants import have_few_digits, number_in_dtype
from .._numbers.finite import count_births
from .._numbers.measure import Measures
from .._numbers.program import NumericProgram
from .._tracebacks.written import Written
from .rows import RoundedArgument, UnknownConstant

# So many decimal places of a number next to 0 or 1 are tried.
_MOST_PLACES = 12


def rounded_arguments(
    measures: Measures, paths: Sequence[str]
) -> tuple[RoundedArgument, ...]:
    """Returns the arguments that were rounded to 0 or 1, by which the program divides.

    A decay of 0.999 is 1 in bfloat16, and 1 less the decay is 0. Whether an argument is the
    cause is tried, by a run with the number that it may have been.

    Args:
        measures: of the program.
        paths: of its arguments, in a tree (args, kwargs).
    """
    rows: list[RoundedArgument] = []
    births: int | None = None
    for place, array in enumerate(measures.arrays):
        is_narrow = kind(array.dtype) == "float" and bits(array.dtype) == 16
        if not is_narrow or array.size != 1:
            continue
        value = float(np.asarray(array).reshape(()))
        decimal = _next_to(value, array.dtype)
        if decimal is None:
            continue
        if births is None:
            births = count_births(measures, measures.arrays)
        # Arguments are tried only if values stop being finite: a 1 is mostly meant as a 1.
        if not births:
            break
        arrays: list[Leaf] = list(measures.arrays)
        arrays[place] = jnp.full(array.shape, decimal, measures.program.formats.wide)
        if count_births(measures, arrays) < births:
            path = argument_path(paths[place])
            rows.append(RoundedArgument(path, value, str(array.dtype), decimal))
    return tuple(rows)


def argument_path(path: str) -> str:
    """Returns the path of an argument of a tree (args, kwargs), as one writes it."""
    name = "args" if path.startswith("[0]") else "kwargs"
    return f"{name}{path[3:]}"


def _next_to(value: float, dtype: DType) -> float | None:
    """Returns a short decimal that a dtype rounds to 0, or from below to 1."""
    if value not in (0.0, 1.0):
        return None
    # The shortest decimal is what somebody would have written.
    for places in range(1, _MOST_PLACES):
        step = 10.0**-places
        decimal = round(1 - step, places) if value else step
        if number_in_dtype(decimal, dtype) == value:
            return decimal
    return None


def unknown_in_program(program: NumericProgram) -> tuple[UnknownConstant, ...]:
    """Returns the constants that may have been rounded before the program was traced."""
    rows: dict[object, UnknownConstant] = {}
    if program.formats.is_own:
        return ()
    for node in program.block.all_nodes():
        for array in node.doubtful:
            numbers = np.asarray(array, np.float64).reshape(-1)
            # Numbers such as 0.5 or 3 are exact in any dtype, and say nothing of a
            # rounding.
            number = int(np.argmin(have_few_digits(numbers)))
            _, exponent = np.frexp(numbers[number])
            eps = float(jnp.finfo(array.dtype).eps)
            row = UnknownConstant(
                origin=Written(node.stack).origin,
                value=float(numbers[number]),
                dtype=str(array.dtype),
                within=float(np.ldexp(eps, int(exponent) - 2)),
            )
            # A constant is used by several equations of its line.
            rows.setdefault((row.origin, row.value), row)
    return tuple(rows.values())
