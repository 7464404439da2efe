"""What a narrow dtype makes of the constants of a program."""

import enum
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jax.core import Tracer

from .._leaves.dtypes import kind
from .._leaves.internals import ForeignNames
from .._leaves.types import DType, Leaf

_SORTS = ForeignNames("sort top_k")


class Lost(enum.IntEnum):
    """What a narrow dtype makes of a value that comes from a constant.

    Attributes:
        NOTHING: nothing but a rounding.
        NEAR_ZERO: 0 where another operand was 0, as of `x + 1e-12`.
        ZERO: 0.
        INFINITE: infinite numbers, as of `jnp.finfo(jnp.float32).min`.
    """

    NOTHING = 0
    NEAR_ZERO = 1
    ZERO = 2
    INFINITE = 3


class Fate(NamedTuple):
    """What becomes of a constant.

    Attributes:
        is_held: whether the narrow dtype has it exactly; known of single numbers alone.
        lost: what it loses.
    """

    is_held: bool = False
    lost: Lost = Lost.NOTHING


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
    return Fate(lost=_fate(greatest.item(), values.dtype, dtype).lost)


@functools.lru_cache(1000)
def _fate(number: float, own: DType, dtype: DType) -> Fate:
    value = np.asarray(number, own)
    with np.errstate(all="ignore"):
        narrow = value.astype(dtype)
    if narrow.astype(own) == value:
        return Fate(is_held=True)
    if narrow == 0:
        return Fate(lost=Lost.ZERO)
    is_lost = np.isfinite(value) and not np.isfinite(narrow)
    return Fate(lost=Lost.INFINITE if is_lost else Lost.NOTHING)


def still_lost(name: str, operands: Sequence[Lost]) -> Lost:
    """What is lost of the results of an equation that computes wide for a constant.

    Args:
        name: of its primitive; that of `add` stands for all sums.
        operands: what is lost of each operand.
    """
    if not any(operands):
        return Lost.NOTHING
    if name in _SORTS:
        return max(operands)
    if name == "div" and operands[1] == Lost.ZERO:
        return Lost.INFINITE
    if name in ("add", "sub", "mul", "div") and Lost.INFINITE in operands:
        return Lost.INFINITE
    return Lost.NEAR_ZERO if name in ("add", "sub") else Lost.NOTHING
