"""How far numbers are apart: norms and distances of arrays."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._leaves.types import Leaf
from .primitives import is_inexact

# All of it is on the host, where nothing is compiled.


def numpy_for(array: Leaf) -> Any:
    """Returns NumPy for an array with values, and JAX's NumPy for one that is traced."""
    if isinstance(array, Tracer):
        return jnp
    return np


def size_of(array: Leaf) -> float:
    """Returns the norm of the finite numbers; of ints and bools how many there are."""
    if not is_inexact(array):
        return float(array.size)
    numbers = in_float64(array)
    is_finite = np.isfinite(numbers)
    return norm_of(numbers[is_finite])


def distance(array: Leaf, exact: Leaf) -> float:
    """Returns the norm of the difference; infinity where one array is not finite.

    Of ints and bools, it is how many differ.
    """
    error = subtract(array, exact)
    if not is_inexact(array):
        return float(error.sum())
    # One number that is lost makes the whole output as good as lost.
    if not np.isfinite(error).all():
        return math.inf
    return norm_of(error)


@np.errstate(all="ignore")  # of what is not finite
def part_along(array: Leaf, exact: Leaf, written: Leaf, size: float) -> float:
    """Returns the product of the errors of two arrays, in squares of a size."""
    # Complex errors have a direction as well.
    direction = np.conj(subtract(written, exact)) / size
    products = direction * (subtract(array, exact) / size)
    total = np.sum(products)
    return float(total.real)


def in_float64(array: Leaf) -> np.ndarray:
    """Returns numbers in float64, complex ones in complex128."""
    numbers = np.asarray(array)
    dtype = np.promote_types(numbers.dtype, np.float64)
    return numbers.astype(dtype)


def norm_of(numbers: np.ndarray) -> float:
    """Returns the norm of numbers in float64."""
    sizes = np.abs(numbers)
    # Squares of numbers beyond 1e154 would overflow, and those of tiny ones vanish.
    largest = np.max(sizes, initial=0.0) or 1.0
    shares = sizes / largest
    # NumPy's own norm asks BLAS, whose threads wait for each other.
    squares = np.square(shares)
    return float(largest * math.sqrt(squares.sum()))


@np.errstate(all="ignore")  # infinity less infinity, where they are equal
def subtract(array: Leaf, exact: Leaf) -> np.ndarray:
    """Returns the difference in float64, where the same infinity makes none."""
    if not is_inexact(array):
        return np.not_equal(array, exact).astype(np.float64)
    numbers = in_float64(array)
    exact_numbers = in_float64(exact)
    is_equal = numbers == exact_numbers
    are_nan = np.isnan(numbers)
    are_nan &= np.isnan(exact_numbers)
    difference = numbers - exact_numbers
    return np.where(is_equal | are_nan, 0, difference)
