"""Computes with NumPy, on a CPU, the equations that XLA computes bit for bit alike.

XLA takes 30 ms to compile an equation, and a call of it ten times as long as NumPy.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._leaves.dtypes import kind
from .._leaves.types import DType, Equation, Leaf
from .._program.jaxprs import Arrays
from .evaluate import DtypeOf
from .primitives import Results

# Each rounds the exact result once, or returns what it is given, or a bool. Whether the
# larger one of 0 and -0 is 0 depends on their order, and in XLA on the size of the arrays.
_UFUNCS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "square": np.square,
    "neg": np.negative,
    "max": np.maximum,
    "min": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}

# Formats of fewer bits are cast by XLA alone: NumPy refuses some, or rounds them twice.
_CAST_ALIKE = frozenset(map(np.dtype, [*"?bBhHiIqQefd", jnp.bfloat16]))

_TINY = {dtype: np.finfo(dtype).tiny for dtype in map(np.dtype, "fd")}


def computed_on_host(eqn: Equation, operands: Arrays, dtype_of: DtypeOf) -> Results | None:
    """Returns the results of an equation by NumPy; None if XLA has to compute it."""
    name = eqn.primitive.name
    if name == "integer_pow" and eqn.params["y"] == 2:
        name = "square"
    if name not in ON_HOST:
        return None
    arrays = [host_array(operand) for operand in operands]
    if any(array is None for array in arrays):
        return None
    if name in _UFUNCS:
        result = _elementwise(_UFUNCS[name], arrays)
    elif name in _REARRANGED:
        result = _REARRANGED[name](eqn, *arrays)
    else:
        dtype = dtype_of(eqn.params["new_dtype"])
        result = cast_on_host(arrays[0], dtype)
    if result is None:
        return None
    return [result]


def host_array(array: Leaf) -> Leaf | None:
    """Returns an array of numbers in NumPy's memory; None if it is on another device."""
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, Tracer) or kind(array.dtype) is None:
        return None
    # What is put on another device stays there, and so does what is put on a mesh: its type
    # has that, if only of one device.
    if not isinstance(array.sharding, jax.sharding.SingleDeviceSharding):
        return None
    if array.devices() != set(jax.local_devices(backend="cpu")[:1]):
        return None
    return np.asarray(array)


def cast_on_host(value: Leaf, dtype: DType) -> Leaf | None:
    """Returns a value in a dtype; None where XLA has other numbers, or has to cast it."""
    array = host_array(value)
    dtypes = [value.dtype, dtype]
    if array is None or not _CAST_ALIKE.issuperset(dtypes):
        return None
    # XLA takes the nearest integer for what does not fit.
    if kind(value.dtype) == "float" and kind(dtype) != "float":
        return None
    # XLA rounds to float32 in between.
    if dtypes == [np.float64, np.float16]:
        return None
    result = array.astype(dtype)
    if np.float64 in dtypes and any(map(_has_tiny, [array, result])):
        return None
    return result


def _has_tiny(array: np.ndarray) -> bool | np.bool_:
    """Returns whether XLA has 0 for a number: for one smaller than the normal ones."""
    # It computes what has 16 bits in float32.
    dtype = np.promote_types(array.dtype, np.float32)
    sizes = np.abs(array, dtype=dtype)
    tiny = _TINY[dtype]
    # Most arrays have neither zeros nor smaller numbers.
    if sizes.min(initial=1) >= tiny:
        return False
    is_small = sizes < tiny
    # Zeros are what they are.
    return sizes[is_small].any()


def _elementwise(ufunc: Callable[..., Any], arrays: list[Any]) -> Leaf | None:
    """Returns the result of an elementwise function; None where XLA has another."""
    dtype = arrays[0].dtype
    if dtype not in _CAST_ALIKE:
        return None
    if kind(dtype) == "int" and ufunc is not np.divide:
        return np.asarray(ufunc(*arrays))
    if kind(dtype) != "float":
        return None
    # XLA divides bfloat16 in float32.
    if ufunc is np.divide and dtype != jnp.bfloat16:
        return _quotient(*arrays)
    return _rounded_once(ufunc, arrays)


def _quotient(dividend: np.ndarray, divisor: np.ndarray) -> Leaf | None:
    # XLA multiplies by the reciprocal of what it repeats.
    if divisor.size == np.broadcast(dividend, divisor).size:
        return _rounded_once(np.divide, [dividend, divisor])
    numerators = np.ones_like(divisor)
    reciprocal = _rounded_once(np.divide, [numerators, divisor])
    if reciprocal is None:
        return None
    return _rounded_once(np.multiply, [dividend, reciprocal])


def _rounded_once(ufunc: Callable[..., Any], arrays: list[Any]) -> Leaf | None:
    """Returns the exact result rounded to the dtype; None where XLA has 0 for a number."""
    dtype = arrays[0].dtype
    # What is rounded to float32 first is rounded to 16 bits as if it were exact.
    wide_dtype = np.promote_types(dtype, np.float32)
    wide_arrays = [array.astype(wide_dtype, copy=False) for array in arrays]
    result = np.asarray(ufunc(*wide_arrays))
    if any(map(_has_tiny, [*wide_arrays, result])):
        return None
    if result.dtype == bool:
        return result
    return result.astype(dtype, copy=False)


def _reshape(eqn: Equation, array: np.ndarray) -> np.ndarray | None:
    if eqn.primitive.name == "reshape" and eqn.params["dimensions"]:
        return None  # it transposes first
    return array.reshape(eqn.outvars[0].aval.shape)


def _transpose(eqn: Equation, array: np.ndarray) -> np.ndarray:
    return array.transpose(eqn.params["permutation"])


def _broadcast(eqn: Equation, array: np.ndarray) -> np.ndarray:
    shape = eqn.outvars[0].aval.shape
    sizes = np.ones(len(shape), int)
    axes = list(eqn.params["broadcast_dimensions"])
    sizes[axes] = array.shape
    return np.broadcast_to(array.reshape(sizes), shape)


def _select(eqn: Equation, which: np.ndarray, *cases: np.ndarray) -> np.ndarray | None:
    if which.dtype != bool:
        return None
    return np.where(which, *reversed(cases))


# These return the numbers of their operands in other places.
_REARRANGED: dict[str, Callable[..., Leaf | None]] = {
    "reshape": _reshape,
    "squeeze": _reshape,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "select_n": _select,
}
ON_HOST = frozenset([*_UFUNCS, *_REARRANGED, "convert_element_type"])
