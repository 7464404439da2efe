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
    limit = float(jnp.finfo(value.dtype).max)
    numbers = np.abs(np.asarray(value, np.float64))
    is_limit = (numbers == limit) | ~np.isfinite(numbers)
    return bool(np.all(is_limit | have_few_digits(numbers)))


def have_few_digits(numbers: np.ndarray) -> np.ndarray:
    """Returns which numbers have few binary digits: 2.0 and 0.5 are exact in any dtype."""
    mantissas, _ = np.frexp(numbers)
    digits = np.ldexp(mantissas, FEW_DIGITS)
    return digits == np.round(digits)


def shortest_decimal(number: Any) -> float:
    """Returns the number that a source most likely has for one in float32."""
    if is_plain(np.asarray(number)):
        return float(number)  # for 2**-23 a source has no decimal
    return float(str(np.float32(number)))


def number_in_dtype(number: float, dtype: DType) -> float:
    """Returns the number that a dtype has for another one."""
    with np.errstate(over="ignore"):  # NumPy warns of -1e9 in float16
        return float(np.asarray(number).astype(dtype))


def most_changed(constant: np.ndarray, dtype: DType) -> float:
    """Returns the number of a constant that a dtype changes most, relative to itself."""
    numbers = np.asarray(constant, np.float64).reshape(-1)
    with np.errstate(all="ignore"):
        rounded = numbers.astype(dtype).astype(np.float64)
        # A number that becomes 0 or infinity has changed more than any other.
        changes = np.nan_to_num(np.abs(rounded / numbers - 1), posinf=0)
    return float(numbers[np.argmax(changes)])


def is_scalar_literal(var: Any) -> bool:
    """Returns whether an operand is a number that stands in its equation."""
    return is_literal(var) and not np.ndim(var.val)
