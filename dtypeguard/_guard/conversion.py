"""Converts the values of a restored leaf on the host, and refuses what would be lost."""

import numpy as np
from jax import numpy as jnp

from .._leaves.dtypes import has_zero, kind
from .._leaves.types import DType, Leaf


class CannotRestore(Exception):
    """A leaf cannot have its recorded type."""

    def __init__(self, remedy: str):
        super().__init__(remedy)
        self.remedy = remedy


def convert_values(leaf: Leaf, dtype: DType) -> np.ndarray:
    """Returns the values of a leaf in another dtype, or raises `CannotRestore`."""
    values = np.asarray(leaf)
    if kind(values.dtype) is None:
        raise _cannot_hold(dtype, leaf)  # a Python integer of more than 64 bits
    with np.errstate(all="ignore"):
        converted = _astype(values, dtype)
        # Floats may be rounded. float8_e8m0fnu has powers of two alone, and no zero.
        is_same_kind = kind(values.dtype) == kind(dtype)
        may_round = is_same_kind and kind(dtype) in ("float", "complex") and has_zero(dtype)
        is_lost = _is_lost(np.real(values), np.real(converted), may_round)
        if "complex" in (kind(values.dtype), kind(dtype)):
            is_lost |= _is_lost(np.imag(values), np.imag(converted), may_round)
    if is_lost.any():
        first_lost = values[is_lost].flat[0]
        raise _cannot_hold(dtype, first_lost)
    return converted


def _cannot_hold(dtype: DType, number: object) -> CannotRestore:
    digits = str(number)[:40]
    return CannotRestore(
        f"{dtype} cannot hold {digits}: change it, or record a wider dtype"
    )


def _astype(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns values in another dtype; floats are rounded to nearest, once."""
    if kind(dtype) != "complex":
        values = np.real(values)
    if values.dtype == np.float64 and kind(dtype) == "float" and dtype.itemsize < 4:
        # ml_dtypes rounds to float32 on the way to bfloat16.
        values = _round_to_odd(values)
    if not np.can_cast(values.dtype, dtype, "unsafe"):
        # NumPy knows no cast between two dtypes of 8 bits or fewer.
        wide_dtype = np.int32 if kind(values.dtype) == "int" else np.float32
        values = values.astype(wide_dtype)
    return values.astype(dtype)


def _round_to_odd(values: np.ndarray) -> np.ndarray:
    """Returns float64 numbers in float32, inexact ones as the neighbour with an odd bit.

    No such number is in the middle of two narrower ones, and rounding it to nearest gives
    what rounding the float64 number would.

    References:
        Boldo, Melquiond, "Emulation of FMA and Correctly Rounded Sums: Proved Algorithms
        Using Rounding to Odd", 2008, https://doi.org/10.1109/TC.2007.70819.
    """
    nearest = values.astype(np.float32)
    error = values - nearest
    is_even = nearest.view(np.uint32) & 1 == 0
    direction = np.copysign(np.float32(np.inf), error.astype(np.float32))
    # The error of an infinity is NaN: it stays.
    is_moved = (np.abs(error) > 0) & is_even
    return np.where(is_moved, np.nextafter(nearest, direction), nearest)


def _is_lost(values: np.ndarray, converted: np.ndarray, may_round: bool) -> np.ndarray:
    """Returns which real numbers another dtype does not hold."""
    is_nan = np.isnan(values) & np.isnan(converted)
    if may_round:
        wide = values.astype(np.promote_types(values.dtype, np.float32))
        # Some formats have no infinity: beyond their range is NaN or their largest.
        is_in_range = np.abs(wide) <= float(jnp.finfo(converted.dtype).max)
        is_infinity = np.isinf(values) & np.isinf(converted)
        return ~(is_in_range | is_infinity | is_nan)
    is_same = values == _astype(converted, values.dtype)
    # A negative number that wraps to an unsigned one survives the way back.
    is_same &= (values < 0) == (converted < 0)
    # An infinity of one format may be the NaN of another.
    is_same &= np.isfinite(values) == np.isfinite(converted)
    return ~(is_same | is_nan)
