"""Numbers as they were meant, before a narrow dtype rounded them."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .._leaves.types import DType
from .._program.jaxprs import is_literal

# A number with so many binary digits was probably meant as it is, as integers are.
FEW_DIGITS = 4


def is_plain(value: np.ndarray) -> bool:
    """Returns whether a constant was probably meant as it is: few digits, or a limit."""
    info = jnp.finfo(value.dtype)
    limit = float(info.max)
    numbers = value.astype(np.float64)
    is_limit = ~(abs(numbers) < limit)
    is_meant = is_limit | have_few_digits(numbers)
    return bool(is_meant.all())


def have_few_digits(numbers: np.ndarray) -> np.ndarray:
    """Returns which numbers have few binary digits: 2.0 and 0.5 are exact in any dtype."""
    mantissas, _ = np.frexp(numbers)
    digits = np.ldexp(mantissas, FEW_DIGITS)
    return digits == np.round(digits)


def shortest_decimal(number: Any) -> float:
    """Returns the number that a source most likely has for one in float32."""
    if is_plain(number):
        return float(number)  # for 2**-23 a source has no decimal
    single = np.float32(number)
    return float(str(single))


def numbers_in_dtype(numbers: Any, dtype: DType) -> np.ndarray:
    """Returns the numbers that a dtype has for others, in float64."""
    with np.errstate(over="ignore"):  # NumPy warns of -1e9 in float16
        narrow = np.asarray(numbers).astype(dtype)
    return narrow.astype(np.float64)


def relative_change(numbers: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """Returns how far rounding has changed each of an array of numbers."""
    # A decay says what it leaves: 0.999 and 1 are as far apart as 0.001 and 0.
    complement = abs(1 - numbers)
    size = np.minimum(abs(numbers), complement)
    with np.errstate(all="ignore"):
        difference = abs(rounded - numbers)
        change = difference / size
    # What is infinite was a mask before; 0 and 1 are in all dtypes.
    is_finite = np.isfinite(change)
    return np.where(is_finite, change, 0)


def is_scalar_literal(var: Any) -> bool:
    """Returns whether an operand is a number that stands in its equation."""
    if not is_literal(var):
        return False
    return np.ndim(var.val) == 0
