"""What is known of a value while a program is emitted, and how it is cast."""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.compat import set_x64, x64_enabled
from .._leaves.dtypes import bits, kind
from .._leaves.types import Aval, DType, Leaf
from .._numbers.primitives import is_inexact
from .._program.meshes import as_dtype
from .lost import Lost, fate

FLOAT32, FLOAT64 = np.dtype("float32"), np.dtype("float64")
_DOUBLES = FLOAT64, np.dtype("complex128")


class ValueType(NamedTuple):
    """The type of a value that is emitted.

    Attributes:
        dtype: its dtype, which may be another than that of the program.
        is_kept: whether it is wide by an explicit cast of the user's.
        is_held: whether it is a constant that the narrow dtype has exactly.
        lost: what the narrow dtype makes of the constants in it.
    """

    dtype: DType
    is_kept: bool = False
    is_held: bool = False
    lost: Lost = Lost.NOTHING


class Value(NamedTuple):
    """A value that is emitted: an array and what `Type` says beside its dtype."""

    array: Leaf
    is_kept: bool = False
    is_held: bool = False
    lost: Lost = Lost.NOTHING

    @property
    def type(self) -> ValueType:
        return ValueType(dtype_of(self.array), *self[1:])


def dtype_of(array: Leaf) -> DType:
    return getattr(array, "dtype", None)


def is_float(value: Any) -> bool:
    """Whether an array or an abstract value is a floating one."""
    return kind(dtype_of(value)) == "float"


def is_narrower(dtype: DType, other: DType) -> bool:
    """Whether a dtype has fewer bits than another of its kind."""
    return 0 < bits(dtype) < bits(other)


def retyped(aval: Aval, dtype: DType) -> Aval:
    """An abstract value with another dtype."""
    if dtype is None or aval.dtype == dtype:
        return aval
    return aval.update(dtype=dtype, weak_type=False)


def scope_for(*dtypes: DType) -> contextlib.AbstractContextManager[object]:
    """A context in which JAX has these dtypes."""
    has_doubles = any(each in _DOUBLES for each in dtypes)
    is_needed = has_doubles and not x64_enabled()
    return set_x64(True) if is_needed else contextlib.nullcontext()


def cast(array: Leaf, dtype: DType) -> Leaf:
    """An array, or a number of a jaxpr, in another dtype."""
    if dtype_of(array) == dtype:
        return array
    with scope_for(dtype, dtype_of(array)):
        if isinstance(array, jax.Array):
            return as_dtype(array, dtype)
        return jnp.asarray(np.asarray(array).astype(dtype))


def constant(number: Leaf, dtype: DType) -> Value:
    """A constant of a jaxpr, and what a narrow dtype makes of it."""
    return Value(number, False, *fate(number, dtype))


def most_lost(values: Sequence[Value | ValueType]) -> Lost:
    return max((value.lost for value in values), default=Lost.NOTHING)


def as_written(values: Sequence[Value], avals: Sequence[Aval]) -> list[Leaf]:
    """Operands in the dtypes that the program has."""
    return [
        cast(value.array, aval.dtype)
        if dtype_of(value.array) != aval.dtype and is_inexact(aval)
        else value.array
        for value, aval in zip(values, avals)
    ]


def with_lost(values: list[Value], lost: Lost) -> list[Value]:
    if not lost:
        return values
    return [x._replace(lost=lost) if is_float(x.array) else x for x in values]


def rounded_indeed(array: Leaf) -> Leaf:
    """A narrow array, of which XLA cannot leave out the rounding that made it."""
    dtype = dtype_of(array)
    rounded = lax.reduce_precision(cast(array, FLOAT32), **bits_of(dtype) or {})
    return cast(rounded, dtype)


def bits_of(dtype: DType) -> dict[str, int] | None:
    """The parameters of the `reduce_precision` that has the bits of a dtype."""
    if kind(dtype) != "float":
        return None
    info = jnp.finfo(dtype)
    return {"exponent_bits": info.nexp, "mantissa_bits": info.nmant}
