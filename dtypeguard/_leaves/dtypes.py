"""The dtype of a leaf, the casts that are safe, and the cast itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from .compat import Ref, has_float64
from .types import DType, Leaf

_ABSTRACT_TYPES = {
    "bool": np.bool_,
    "int": np.integer,
    "float": np.floating,
    "complex": np.complexfloating,
}
# The kinds, each after those that it can hold.
KINDS = tuple(_ABSTRACT_TYPES)
# A bool is also an int to Python.
_PYTHON_NUMBERS = (bool, int, float, complex)
# To ask for a reference takes microseconds: numbers come first.
_NO_ARRAYS = (*_PYTHON_NUMBERS, type, Ref)
_FLOATS_OF_32_BITS = {
    np.dtype("float64"): np.dtype("float32"),
    np.dtype("complex128"): np.dtype("complex64"),
}
_DTYPES_OF_64_BITS = {np.dtype("int64"), np.dtype("uint64"), *_FLOATS_OF_32_BITS}


@functools.cache
def kind(dtype: DType) -> str | None:
    """Returns the kind of a dtype: "bool", "int", "float" or "complex", or None.

    No cast applies to the rest: float0, PRNG keys, strings, dates, objects.
    """
    # None is float64 to NumPy, and a difference of dates an integer.
    if dtype is None or getattr(dtype, "type", None) is np.timedelta64:
        return None
    for name, abstract_type in _ABSTRACT_TYPES.items():
        try:
            if jnp.issubdtype(dtype, abstract_type):
                return name
        except TypeError:  # the dtype of another library's array
            return None
    return None


def rank(dtype: DType) -> int:
    """Returns the place of the kind of a dtype among all kinds."""
    return KINDS.index(kind(dtype) or "bool")


def bits(dtype: DType) -> int:
    """Returns the bits of a float, or of a complex number's parts; 0 for other dtypes."""
    if kind(dtype) == "float":
        return 8 * dtype.itemsize
    if kind(dtype) == "complex":
        return 4 * dtype.itemsize
    return 0


def has_zero(dtype: DType) -> bool:
    """Returns whether a dtype holds 0: float8_e8m0fnu has neither that nor a sign."""
    return bool(np.zeros((), dtype) == 0)


def dtype_of(leaf: Leaf) -> DType:
    """Returns the dtype under which an array leaf is recorded; None for any other leaf."""
    if is_array(leaf):
        if kind(leaf.dtype) is None:
            return None
        if isinstance(leaf, (np.ndarray, np.generic)):
            return jax.dtypes.canonicalize_dtype(leaf.dtype)
        return leaf.dtype
    for python_type in _PYTHON_NUMBERS:
        if isinstance(leaf, python_type):
            return jax.dtypes.canonicalize_dtype(python_type)
    return None


def is_array(leaf: Leaf) -> bool:
    """Returns whether a leaf is an array or stands for one: it has a dtype and a shape.

    `jnp.bfloat16` has a dtype but no shape. It is itself a dtype; a module may hold one. A
    JAX reference has both, but holds an array whose type cannot change.
    """
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
        return True
    if isinstance(leaf, _NO_ARRAYS):
        return False
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape")


def is_python_number(leaf: Leaf) -> bool:
    """Returns whether a leaf is a bool, int, float or complex of Python, not of NumPy."""
    # np.float64 is a subclass of float, but promotes like an array.
    if isinstance(leaf, np.generic):
        return False
    return isinstance(leaf, _PYTHON_NUMBERS)


def is_weak(leaf: Leaf) -> bool:
    """Returns whether a leaf promotes like a Python scalar, as Python scalars do."""
    if is_python_number(leaf):
        return True
    return getattr(leaf, "weak_type", False)


def has_64_bits(leaf: Leaf) -> bool:
    """Returns whether a leaf is a 64-bit array (128-bit complex); no Python scalar is."""
    if is_python_number(leaf):
        return False
    return dtype_of(leaf) in _DTYPES_OF_64_BITS


def is_available(dtype: DType) -> bool:
    """Returns whether JAX now makes arrays of a dtype: with x64 off, none of 64 bits."""
    if dtype in _DTYPES_OF_64_BITS:
        return has_float64()
    return True


def is_64_bit_scalar(leaf: Leaf) -> bool:
    """Returns whether a leaf is a weak 64-bit scalar, as of a number, that 32 bits hold."""
    is_weak_array = getattr(leaf, "weak_type", False)
    if not is_weak_array or not has_64_bits(leaf):
        return False
    if np.ndim(leaf) > 0:
        return False
    if isinstance(leaf, Tracer):  # its number is not known
        return True
    # A number that JAX makes an int64 may be larger.
    number = np.asarray(leaf)
    return not wraps(number, np.dtype("int32"))


def canonical(leaf: Leaf) -> jax.Array:
    """Returns a leaf as a strongly typed array of a dtype that JAX has under its flags."""
    return cast(leaf, jax.dtypes.canonicalize_dtype(dtype_of(leaf)))


def canonical_scalar(leaf: Leaf) -> Leaf:
    """Returns the `canonical` array for a wide scalar; any other leaf unchanged."""
    if is_64_bit_scalar(leaf):
        return canonical(leaf)
    return leaf


def narrow(leaf: Leaf) -> Leaf:
    """Casts a 64-bit floating or complex JAX array to 32 bits; returns any other leaf."""
    if isinstance(leaf, jax.Array) and leaf.dtype in _FLOATS_OF_32_BITS:
        return cast(leaf, _FLOATS_OF_32_BITS[leaf.dtype])
    return leaf


def fits(source: DType, target: DType) -> bool:
    """Returns whether a cast stays within a kind, or goes between bool and int."""
    kinds = {kind(source), kind(target)}
    return len(kinds) == 1 or kinds == {"bool", "int"}


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Returns whether adding an array of `shape` to one of `target` keeps that shape."""
    try:
        return jnp.broadcast_shapes(shape, target) == tuple(target)
    except ValueError:
        return False


def cast(leaf: Leaf, dtype: DType) -> jax.Array:
    """Returns a leaf as a strongly typed JAX array of a dtype; itself if it is one."""
    has_dtype = getattr(leaf, "dtype", None) == dtype
    is_strong_array = getattr(leaf, "weak_type", True) is False
    if has_dtype and is_strong_array:
        return leaf
    if is_python_number(leaf):
        # JAX makes a weakly typed array of a subclass, such as an `IntEnum`.
        leaf = np.asarray(leaf)
    is_complex = kind(dtype_of(leaf)) == "complex"
    if is_complex and kind(dtype) != "complex":
        leaf = lax.real(leaf)
    return lax.convert_element_type(leaf, dtype)


def cast_float(leaf: Leaf, dtype: DType) -> Leaf:
    """Returns a floating leaf in another dtype; any other leaf as it is."""
    if kind(dtype_of(leaf)) == "float":
        return cast(leaf, dtype)
    return leaf


def widen_float(leaf: Leaf, dtype: DType) -> Leaf:
    """Returns a narrower floating leaf in a wider dtype; any other leaf as it is."""
    if bits(dtype_of(leaf)) < bits(dtype):
        return cast_float(leaf, dtype)
    return leaf


def wraps(leaf: Leaf, dtype: DType) -> bool:
    """Returns whether an integer of Python or NumPy does not fit into an integer dtype."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return False
    if kind(dtype) != "int" or kind(dtype_of(leaf)) != "int":
        return False
    numbers = np.asarray(leaf)
    limits = jnp.iinfo(dtype)
    # As Python's: NumPy wraps a limit that does not fit into the dtype of the numbers.
    is_below = numbers < int(limits.min)
    is_above = numbers > int(limits.max)
    return bool(np.any(is_below | is_above))


def promoted(*dtypes: DType) -> DType:
    """Returns the dtype to which dtypes promote, even if the caller forbids promotion."""
    if len(set(dtypes)) == 1:
        return dtypes[0]
    # JAX promotes no float of 8 bits or fewer.
    promotable = []
    for dtype in dtypes:
        if bits(dtype) == 8:
            dtype = jnp.dtype("float32")
        promotable.append(dtype)
    with jax.numpy_dtype_promotion("standard"):
        return functools.reduce(jnp.promote_types, promotable)


def promoted_weakly(weak: Leaf, strong: Leaf) -> DType:
    """Returns the dtype that a JAX loop gives to a weakly typed leaf of its first carry."""
    try:
        with jax.numpy_dtype_promotion("standard"):
            return jnp.result_type(weak, strong)
    except (TypeError, ValueError):  # a float with int4, a complex number with float8
        return dtype_of(weak)
