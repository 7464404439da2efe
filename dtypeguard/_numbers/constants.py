"""Constants as they were meant, before a narrow dtype rounded them."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits
from .._leaves.types import DType, Equation
from .._program.aligned import Alignment
from .._program.jaxprs import Stack, is_literal
from .._tracebacks.written import Written
from .formats import Formats

# A number with so many binary digits was probably meant as it is, as integers are.
FEW_DIGITS = 4


def meant_constants(
    aligned: Alignment,
    variables: Sequence[Any],
    eqn: Equation | None,
    stack: Stack,
    formats: Formats,
    rounds: bool,
) -> dict[int, np.ndarray]:
    """Returns the constants among variables that were meant as different numbers.

    Args:
        aligned: the jaxpr beside its other trace.
        variables: operands of an equation, or outputs of the jaxpr.
        eqn: the equation; None for outputs.
        stack: it and those around it.
        formats: the dtypes of the program.
        rounds: whether they have to round to what the program has.
    """
    constants: dict[int, np.ndarray] = {}
    for place, var in enumerate(variables):
        if not formats.rounds(getattr(var.aval, "dtype", None)):
            continue
        value = aligned.intended_constant(eqn, place, rounds)
        # A float32 number has lost digits of the source's decimal in any trace.
        if value is None and _is_single_number(var):
            value = np.asarray(var.val)
        if value is None:
            continue
        # 0.1 in float32 is 0.100000001: the source has 0.1.
        if not value.ndim:
            value = np.asarray(shortest_decimal(value))
        constants[place] = value
    if constants and Written(stack).is_of_sampler:
        # Random numbers are the same sample whatever they are compared with.
        return {}
    return constants


def doubtful_constants(aligned: Alignment, eqn: Equation, stack: Stack) -> list[np.ndarray]:
    """Returns the 16-bit constants of an equation that may have been rounded before it.

    They are as narrow in the trace of float32 arguments, or that has no such equation.
    """
    unknown: list[np.ndarray] = []
    is_matched = aligned.partner(eqn) is not None
    for place, var in enumerate(eqn.invars):
        value = aligned.doubtful_constant(eqn, place)
        if not is_matched and is_literal(var) and not np.ndim(var.val):
            value = np.asarray(var.val, var.aval.dtype)
        if value is None or not 0 < bits(value.dtype) < 32:
            continue
        # 2.0 and 0.5 are the same in any dtype.
        if not _is_plain(value):
            unknown.append(value)
    if unknown and Written(stack).is_of_sampler:
        return []
    return unknown


def _is_plain(value: np.ndarray) -> bool:
    """Returns whether a constant was probably meant as it is: few digits, or a limit."""
    limit = float(jnp.finfo(value.dtype).max)
    numbers = np.abs(np.asarray(value, np.float64))
    is_plain = have_few_digits(numbers)
    is_plain |= numbers == limit
    is_plain |= ~np.isfinite(numbers)
    return bool(np.all(is_plain))


def have_few_digits(numbers: np.ndarray) -> np.ndarray:
    """Returns which numbers have few binary digits: 2.0 and 0.5 are exact in any dtype."""
    mantissas, _ = np.frexp(numbers)
    digits = np.ldexp(mantissas, FEW_DIGITS)
    return digits == np.round(digits)


def shortest_decimal(number: Any) -> float:
    """Returns the number that a source most likely has for one in float32."""
    if _is_plain(np.asarray(number)):
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


def _is_single_number(var: Any) -> bool:
    """Returns whether an operand is a number of float32 that stands in its equation."""
    if not is_literal(var) or np.ndim(var.val):
        return False
    return var.aval.dtype == np.float32
