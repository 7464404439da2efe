"""How far numbers are apart: norms and distances of arrays."""

import math

import jax.numpy as jnp
import numpy as np

from .._leaves.types import Leaf
from .primitives import is_inexact

# All of it is on the host, where nothing is compiled.


def size_of(array: Leaf) -> float:
    """Returns the norm of the finite numbers; of ints and bools how many there are."""
    if not is_inexact(array):
        return float(array.size)
    numbers = _in_float64(array)
    return _norm_of(np.where(np.isfinite(numbers), numbers, 0))


def distance(array: Leaf, exact: Leaf) -> float:
    """Returns the norm of the difference; infinity where one array is not finite.

    Of ints and bools, it is how many differ.
    """
    if not is_inexact(array):
        return float(jnp.sum(array != exact))
    error = _difference(array, exact)
    # One number that is lost makes the whole output as good as lost.
    return _norm_of(error) if np.isfinite(error).all() else math.inf


@np.errstate(all="ignore")  # of what is not finite
def part_along(array: Leaf, exact: Leaf, written: Leaf) -> float:
    """Returns the product of an array's error with the error of another one."""
    # Complex errors have a direction as well.
    direction = np.conj(_difference(written, exact))
    return float(np.sum(np.real(direction * _difference(array, exact))))


def _in_float64(array: Leaf) -> np.ndarray:
    numbers = np.asarray(array)
    return numbers.astype(np.promote_types(numbers.dtype, np.float64))


def _norm_of(array: Leaf) -> float:
    # NumPy's own norm asks BLAS, whose threads wait for each other.
    return math.sqrt(np.sum(np.square(np.abs(array))))


@np.errstate(all="ignore")  # infinity less infinity, where they are equal
def _difference(array: Leaf, exact: Leaf) -> np.ndarray:
    """Returns the difference in float64, where the same infinity makes none."""
    if not is_inexact(array):
        return np.asarray(array != exact, np.float64)
    numbers = _in_float64(array)
    exact_numbers = _in_float64(exact)
    is_equal = numbers == exact_numbers
    is_equal |= np.isnan(numbers) & np.isnan(exact_numbers)
    return np.where(is_equal, 0, numbers - exact_numbers)
