"""How a wide value is rounded as the program rounds its own."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.types import DType, Leaf


def rounded_as(narrow: Leaf, exact: Leaf, from_narrow: Leaf | None) -> Leaf:
    """A wide result, rounded as the program rounds its own.

    Args:
        narrow: the program's.
        exact: the wide result.
        from_narrow: the wide result of the program's operands; None if it is known to be
            the program's result before rounding.
    """
    if from_narrow is None:
        return _round(exact, narrow.dtype)
    rounded, as_narrow = (_round(x, narrow.dtype) for x in (exact, from_narrow))
    given = lax.convert_element_type(narrow, exact.dtype)
    # The program may do more than round: bfloat16 sums, for example. That is added, but
    # for the sign's sake no more than half of the value: a variance stays positive. What
    # an earlier line has lost is not this one's to add.
    more = lax.sub(given, as_narrow)
    more = lax.select(jnp.isfinite(more), more, lax.full_like(given, 0))
    if exact.dtype.kind != "c":
        half = lax.mul(lax.abs(rounded), lax.full_like(rounded, 0.5))
        more = lax.clamp(lax.neg(half), more, half)
    return lax.select(lax.eq(rounded, as_narrow), given, lax.add(rounded, more))


def _round(array: Leaf, dtype: DType) -> Leaf:
    """A wide array rounded to a narrow dtype."""
    if array.dtype == dtype:
        return array
    if dtype == jnp.bfloat16 and array.dtype == np.float32:  # they have the same range
        return lax.reduce_precision(array, 8, 7)
    narrow = lax.optimization_barrier(lax.convert_element_type(array, dtype))
    return lax.convert_element_type(narrow, array.dtype)
