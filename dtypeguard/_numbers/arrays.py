"""How far numbers are apart: norms and distances of arrays."""

import math
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from .._leaves.types import Leaf
from .primitives import is_inexact

# So many numbers are compared at a time. They are on the host, where nothing is compiled.
_PIECE = 2**20


def size_of(array: Leaf) -> float:
    """Returns the norm of the finite numbers; of ints and bools how many there are."""
    if not is_inexact(array):
        return float(array.size)
    norms: list[float] = []
    for (piece,) in _pieces(array):
        norms.append(_stable_norm(np.where(np.isfinite(piece), piece, 0)))
    return math.hypot(*norms)


def distance(array: Leaf, exact: Leaf) -> float:
    """Returns the norm of the difference; infinity where one array is not finite.

    Of ints and bools, it is how many differ.
    """
    if not is_inexact(array):
        return float(jnp.sum(array != exact))
    norms: list[float] = []
    for piece, exact_piece in _pieces(array, exact):
        error = _difference(piece, exact_piece)
        # One number that is lost makes the whole output as good as lost.
        if not np.isfinite(error).all():
            return math.inf
        norms.append(_stable_norm(error))
    return math.hypot(*norms)


def part_along(array: Leaf, exact: Leaf, written: Leaf, unit: float) -> float:
    """Returns how far an array is off along the error of another one, in squared units."""
    total = 0.0
    for piece, exact_piece, written_piece in _pieces(array, exact, written):
        # Complex errors have a direction as well.
        direction = np.conj(_difference(written_piece, exact_piece) / unit)
        product = direction * (_difference(piece, exact_piece) / unit)
        total += float(np.sum(product.real))
    return total


def _pieces(*arrays: Leaf) -> Iterator[list[np.ndarray]]:
    """Yields pieces of arrays of one shape; floats have 64 bits a number."""
    flat_arrays = [np.asarray(array).reshape(-1) for array in arrays]
    for first in range(0, flat_arrays[0].size, _PIECE):
        pieces = [array[first : first + _PIECE] for array in flat_arrays]
        # Infinity less infinity is what the difference below is for.
        with np.errstate(all="ignore"):
            yield [_in_float64(piece) for piece in pieces]


def _in_float64(array: np.ndarray) -> np.ndarray:
    if not is_inexact(array):
        return array
    return array.astype(np.promote_types(array.dtype, np.float64))


def _stable_norm(array: np.ndarray) -> float:
    """Returns the norm, which overflows no earlier than the numbers."""
    sizes = np.abs(array)
    largest = float(np.max(sizes, initial=0))
    if not largest:
        return 0.0
    # NumPy's own norm asks BLAS, whose threads wait for each other.
    return largest * math.sqrt(np.sum(np.square(sizes / largest)))


def _difference(array: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Returns the difference, where the same infinity makes none."""
    if not is_inexact(array):
        return (array != exact).astype(np.float64)
    is_equal = (array == exact) | (np.isnan(array) & np.isnan(exact))
    return np.where(is_equal, 0, array - exact)
