"""What was rounded before the program saw it: arguments, and constants of 16 bits."""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits
from .._leaves.types import Leaf
from .._numbers.annotation import have_few_digits, numbers_in_dtype
from .._numbers.finite import count_births
from .._numbers.measure import Measures
from .._numbers.program import NumericProgram
from .._tracebacks.written import Written
from .rows import RoundedArgument, UnknownConstant

# So many decimal places of a number next to 0 or 1 are tried.
_MOST_PLACES = 12


def rounded_arguments(
    measures: Measures, names: Sequence[str]
) -> Iterator[RoundedArgument]:
    """Yields the arguments that were rounded to 0 or 1, by which the program divides.

    A decay of 0.999 is 1 in bfloat16, and 1 less the decay is 0. Whether an argument is the
    cause is tried, by a run with the number that it may have been.

    Args:
        measures: of the program.
        names: of its arguments.
    """
    births = None
    for place, array in enumerate(measures.arrays):
        decimal = _decimal_beside(array)
        if decimal is None:
            continue
        if births is None:
            births = count_births(measures, measures.arrays)
        # Only if values stop being finite: a 1 is mostly meant as a 1.
        if not births:
            return
        arrays = list(measures.arrays)
        arrays[place] = jnp.full(array.shape, decimal, measures.program.formats.wide)
        if count_births(measures, arrays) < births:
            yield RoundedArgument(
                path=names[place],
                value=round(decimal),
                dtype=str(array.dtype),
                meant=decimal,
            )


def _decimal_beside(array: Leaf) -> float | None:
    """Returns a short decimal that a 16-bit dtype rounds to a scalar 0 or 1."""
    if bits(array.dtype) != 16 or array.size != 1:
        return None
    number = float(array.reshape(()))
    if number not in (0.0, 1.0):
        return None
    # The shortest decimal is what somebody would have written.
    for places in range(1, _MOST_PLACES):
        decimal = round(abs(number - 10.0**-places), places)
        if numbers_in_dtype(decimal, array.dtype) == number:
            return decimal
    return None


def unknown_in_program(program: NumericProgram) -> tuple[UnknownConstant, ...]:
    """Returns the constants that may have been rounded before the program was traced."""
    rows = {}
    for node in program.block.all_nodes():
        for array in node.doubtful:
            numbers = np.asarray(array, np.float64).reshape(-1)
            # Numbers such as 0.5 or 3 are exact in any dtype, and say nothing of a
            # rounding.
            number = numbers[np.argmin(have_few_digits(numbers))]
            row = UnknownConstant(
                origin=Written(node.stack).origin,
                value=float(number),
                dtype=str(array.dtype),
                within=float(np.spacing(np.asarray(abs(number), array.dtype))) / 2,
            )
            # A constant is used by several equations of its line.
            rows.setdefault((row.origin, row.value), row)
    return tuple(rows.values())
