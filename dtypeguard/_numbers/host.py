"""Computes with NumPy, on a CPU, the equations that XLA computes bit for bit alike.

XLA takes 30 ms to compile an equation, and a call of it ten times as long as NumPy. Where
XLA makes other numbers, or its arrays are elsewhere, functions here raise `NotOnHost`.
"""

import functools
import itertools
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

_INTEGERS = frozenset(map(np.dtype, "bBhHiIqQ"))
_FLOATS = frozenset(map(np.dtype, ["e", "f", "d", jnp.bfloat16]))
# NumPy refuses some formats of fewer bits, or rounds to them twice.
_CASTS = set(itertools.product(_FLOATS, _FLOATS))
# From floats to integers XLA takes the nearest integer for what does not fit.
_EXACT = _INTEGERS | {np.dtype(bool)}
_CASTS.update(itertools.product(_EXACT, _EXACT | _FLOATS))
# XLA rounds to float32 in between.
_CASTS.remove((np.dtype("float64"), np.dtype("float16")))


class NotOnHost(Exception):
    """XLA alone computes this, or makes other numbers of it than NumPy."""


def computed_on_host(eqn: Equation, operands: Arrays, dtype_of: DtypeOf) -> Leaf:
    """Returns the result of an equation by NumPy."""
    name = eqn.primitive.name
    if name == "integer_pow":
        if eqn.params["y"] != 2:
            raise NotOnHost
        name = "square"
    if name not in ON_HOST:
        raise NotOnHost
    if name == "convert_element_type":
        dtype = dtype_of(eqn.params["new_dtype"])
        return cast_on_host(operands[0], dtype)
    arrays = list(map(host_array, operands))
    if name in _REARRANGED:
        return _REARRANGED[name](eqn, *arrays)
    result = _elementwise(_UFUNCS[name], arrays)
    (variable,) = eqn.outvars
    # A product may be asked for in another dtype than its operands have.
    if result.dtype != dtype_of(variable.aval.dtype):
        raise NotOnHost
    return result


def host_array(array: Leaf) -> Leaf:
    """Returns an array of numbers in NumPy's memory."""
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, Tracer):
        raise NotOnHost
    # Keys are no numbers.
    if kind(array.dtype) is None:
        raise NotOnHost
    if jax.default_backend() != "cpu":
        raise NotOnHost
    # What is put on another device stays there, and so does what is put on a mesh: its type
    # has that, if only of one device.
    if array.sharding != _sharding_on_host():
        raise NotOnHost
    return np.asarray(array)


@functools.cache
def _sharding_on_host() -> jax.sharding.Sharding:
    """Returns where arrays are that nothing has put elsewhere."""
    first_cpu = jax.local_devices()[0]
    return jax.sharding.SingleDeviceSharding(first_cpu)


def cast_on_host(value: Leaf, dtype: DType) -> Leaf:
    """Returns a value in a dtype."""
    array = host_array(value)
    dtypes = (array.dtype, dtype)
    if dtypes not in _CASTS:
        raise NotOnHost
    result = array.astype(dtype)
    # Between float32 and 16 bits, XLA keeps smaller numbers as well.
    if np.float64 in dtypes:
        _check_sizes(array, result)
    return result


def _check_sizes(*arrays: np.ndarray) -> None:
    """Raises an error where numbers are smaller than the normal ones."""
    for array in arrays:
        # XLA computes what has 16 bits in float32.
        dtype = np.promote_types(array.dtype, np.float32)
        sizes = np.abs(array, dtype=dtype)
        smallest = _smallest_normal(dtype)
        # Most arrays have neither zeros nor smaller numbers.
        if sizes.min(initial=1) >= smallest:
            continue
        is_small = sizes < smallest
        # Zeros are what they are.
        if sizes[is_small].any():
            raise NotOnHost


@functools.cache
def _smallest_normal(dtype: np.dtype) -> np.floating:
    """Returns the smallest normal number; to ask NumPy takes microseconds."""
    return np.finfo(dtype).tiny


def _elementwise(ufunc: Callable[..., Any], arrays: Results) -> Leaf:
    """Returns the result of an elementwise function."""
    dtype = arrays[0].dtype
    if dtype in _INTEGERS and ufunc is not np.divide:
        return np.asarray(ufunc(*arrays))
    if dtype not in _FLOATS:
        raise NotOnHost
    if ufunc is np.divide:
        return _quotient(*arrays)
    return _rounded_once(ufunc, *arrays)


def _quotient(dividend: np.ndarray, divisor: np.ndarray) -> Leaf:
    """Returns a quotient of floats as XLA divides them."""
    is_repeated = divisor.size < np.broadcast(dividend, divisor).size
    # XLA multiplies by the reciprocal of what it repeats, but divides bfloat16 in float32.
    if is_repeated and divisor.dtype != jnp.bfloat16:
        numerators = np.ones_like(divisor)
        reciprocal = _rounded_once(np.divide, numerators, divisor)
        return _rounded_once(np.multiply, dividend, reciprocal)
    return _rounded_once(np.divide, dividend, divisor)


def _rounded_once(ufunc: Callable[..., Any], *arrays: np.ndarray) -> Leaf:
    """Returns the exact result rounded to the dtype."""
    dtype = arrays[0].dtype
    # What is rounded to float32 first is rounded to 16 bits as if it were exact.
    wide_dtype = np.promote_types(dtype, np.float32)
    wide_arrays = [array.astype(wide_dtype, copy=False) for array in arrays]
    result = np.asarray(ufunc(*wide_arrays))
    _check_sizes(*wide_arrays, result)
    if result.dtype == bool:
        return result
    return result.astype(dtype, copy=False)


def _reshape(eqn: Equation, array: np.ndarray) -> np.ndarray:
    if eqn.primitive.name == "reshape" and eqn.params["dimensions"]:
        raise NotOnHost  # it transposes first
    (result,) = eqn.outvars
    return array.reshape(result.aval.shape)


def _transpose(eqn: Equation, array: np.ndarray) -> np.ndarray:
    return array.transpose(eqn.params["permutation"])


def _broadcast(eqn: Equation, array: np.ndarray) -> np.ndarray:
    """Returns an array repeated along new axes, and along those of size 1."""
    (result,) = eqn.outvars
    shape = result.aval.shape
    sizes = np.ones(len(shape), int)
    axes = list(eqn.params["broadcast_dimensions"])
    sizes[axes] = array.shape
    reshaped = array.reshape(sizes)
    return np.broadcast_to(reshaped, shape)


def _select(eqn: Equation, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    """Returns the last case where a bool is true, the first one elsewhere."""
    # Integers that are too large or too small are the nearest ones in XLA.
    if which.dtype != bool:
        raise NotOnHost
    # Both are the same where there is one.
    return np.where(which, cases[-1], cases[0])


# These return the numbers of their operands in other places.
_REARRANGED: dict[str, Callable[..., Leaf]] = {
    "reshape": _reshape,
    "squeeze": _reshape,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "select_n": _select,
}
ON_HOST = {"convert_element_type", *_UFUNCS, *_REARRANGED}
