"""What a narrow dtype makes of the constants of a program."""

import functools
from typing import NamedTuple

import numpy as np
from jax.core import Tracer

from .._leaves.dtypes import kind
from .._leaves.types import DType, Leaf


class Fate(NamedTuple):
    """What becomes of a constant in a narrow dtype.

    Attributes:
        is_held: whether the dtype has it exactly; known of single numbers alone.
        is_lost: whether it makes it 0 or infinite: `1e-12`, or the least float32.
    """

    is_held: bool = False
    is_lost: bool = False


def fate(constant: Leaf, dtype: DType) -> Fate:
    """What becomes of a constant in a dtype; of an array, of its greatest finite number."""
    is_known = not isinstance(constant, Tracer)
    if not is_known or kind(getattr(constant, "dtype", None)) != "float":
        return Fate()
    if not getattr(constant, "is_fully_addressable", True) or not np.size(constant):
        return Fate()
    values = np.asarray(constant)
    if values.size == 1:
        return _fate(values.item(), values.dtype, dtype)
    greatest = max(values.max(), -values.min())
    if not np.isfinite(greatest):
        greatest = np.max(abs(values), initial=0, where=np.isfinite(values))
    return Fate(is_lost=_fate(greatest.item(), values.dtype, dtype).is_lost)


@functools.lru_cache(1000)
def _fate(number: float, own: DType, dtype: DType) -> Fate:
    value = np.asarray(number, own)
    with np.errstate(all="ignore"):
        narrow = value.astype(dtype)
    is_held = bool(narrow.astype(own) == value)
    is_infinite = np.isfinite(value) and not np.isfinite(narrow)
    return Fate(is_held, not is_held and bool(narrow == 0 or is_infinite))
