"""The dtype of a leaf, the casts that are safe, the cast itself, and its name."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from .compat import Ref
from .types import DType, Leaf

_FAMILIES = {
    "bool": np.bool_,
    "int": np.integer,
    "float": np.floating,
    "complex": np.complexfloating,
}
_SCALARS = (bool, int, float, complex)
_NARROW = {
    np.dtype("float64"): np.dtype("float32"),
    np.dtype("complex128"): np.dtype("complex64"),
}
_WIDE = {np.dtype("int64"), np.dtype("uint64"), *_NARROW}


@functools.cache
def kind(dtype: DType) -> str | None:
    """The kind of a dtype: "bool", "int", "float", "complex", or None for the rest.

    No cast applies to the rest: float0, PRNG keys, strings, dates, objects.
    """
    # None is float64 to NumPy, and a difference of dates an integer.
    if dtype is None or getattr(dtype, "type", None) is np.timedelta64:
        return None
    try:
        return next((k for k, f in _FAMILIES.items() if jnp.issubdtype(dtype, f)), None)
    except TypeError:  # the dtype of another library's array
        return None


def bits(dtype: DType) -> int:
    """The bits of a floating number, or of a complex one's parts; 0 for any other dtype."""
    each = {"float": 8, "complex": 4}.get(kind(dtype) or "", 0)
    return each * dtype.itemsize if each else 0


def has_zero(dtype: DType) -> bool:
    """Whether a dtype holds 0: float8_e8m0fnu has neither that nor a sign."""
    return bool(np.zeros((), dtype) == 0)


def dtype_of(leaf: Leaf) -> DType:
    """The dtype that an array leaf is recorded with, or None for any other leaf."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        dtype = _native(leaf.dtype)
        return jax.dtypes.canonicalize_dtype(dtype) if kind(dtype) else None
    if is_array(leaf):
        return leaf.dtype if kind(leaf.dtype) else None
    if isinstance(leaf, _SCALARS):
        return jax.dtypes.canonicalize_dtype(_scalar_type(leaf))
    return None


def _scalar_type(number: Leaf) -> type:
    """The Python type of a number, which may be of a subclass, such as an `IntEnum`."""
    return next(scalar for scalar in _SCALARS if isinstance(number, scalar))


def native(leaf: Leaf) -> Leaf:
    """A NumPy array of a file's byte order or of long doubles in a dtype that JAX has."""
    is_numpy = isinstance(leaf, (np.ndarray, np.generic))
    return leaf.astype(_native(leaf.dtype), copy=False) if is_numpy else leaf


# By type: NumPy's letters are not unique. "G" is float8_e4m3fnuz as well.
_DOUBLES = {np.longdouble: np.dtype("float64"), np.clongdouble: np.dtype("complex128")}


@functools.cache
def _native(dtype: DType) -> DType:
    if kind(dtype) is None:
        return dtype
    return _DOUBLES.get(dtype.type, dtype.newbyteorder("="))


def is_array(leaf: Leaf) -> bool:
    """Whether a leaf is an array or stands for one: it has a dtype and a shape.

    `jnp.bfloat16` has a dtype but no shape. It is itself a dtype; a module may hold one. A
    JAX reference has both, but holds an array whose type cannot change.
    """
    if isinstance(leaf, jax.Array):
        return True
    has_both = hasattr(leaf, "dtype") and hasattr(leaf, "shape")
    return has_both and not isinstance(leaf, (type, Ref))


def is_python_number(leaf: Leaf) -> bool:
    """Whether a leaf is a Python bool, int, float or complex, but not a NumPy scalar."""
    # np.float64 is a subclass of float, but promotes like an array.
    return isinstance(leaf, _SCALARS) and not isinstance(leaf, np.generic)


def is_weak(leaf: Leaf) -> bool:
    """Whether a leaf promotes like a Python scalar, as Python scalars do."""
    return is_python_number(leaf) or getattr(leaf, "weak_type", False)


def is_wide(leaf: Leaf) -> bool:
    """Whether a leaf is a 64-bit array (128-bit complex); a Python scalar is not."""
    return not is_python_number(leaf) and dtype_of(leaf) in _WIDE


def is_wide_scalar(leaf: Leaf) -> bool:
    """Whether a leaf is a weak 64-bit scalar, as of a Python number, that 32 bits hold."""
    if not (getattr(leaf, "weak_type", False) and is_wide(leaf)) or np.ndim(leaf) > 0:
        return False
    if kind(leaf.dtype) != "int" or isinstance(leaf, Tracer):
        return True
    return -(2**31) <= int(leaf) < 2**31


def canonical(leaf: Leaf) -> jax.Array:
    """A leaf as a strongly typed array of a dtype that JAX has under the current flag."""
    return cast(leaf, jax.dtypes.canonicalize_dtype(dtype_of(leaf)))


def canonical_scalar(leaf: Leaf) -> Leaf:
    """A leaf that `is_wide_scalar` as a `canonical` one; any other as it is."""
    return canonical(leaf) if is_wide_scalar(leaf) else leaf


def narrow(leaf: Leaf) -> Leaf:
    """Casts a 64-bit floating or complex JAX array to 32 bits; returns any other leaf."""
    if isinstance(leaf, jax.Array) and leaf.dtype in _NARROW:
        return cast(leaf, _NARROW[leaf.dtype])
    return leaf


# The kinds, each after those that it can hold.
KINDS = ("bool", "int", "float", "complex")


def rank(dtype: DType) -> int:
    """The place of the kind of a dtype among all kinds."""
    return KINDS.index(kind(dtype) or "bool")


def fits(source: DType, target: DType) -> bool:
    """Whether a cast stays within a kind, or goes between bool and int."""
    return kind(source) == kind(target) or {kind(source), kind(target)} == {"bool", "int"}


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether adding an array of `shape` to one of `target` keeps the target's shape."""
    pairs = zip(reversed(shape), reversed(target))
    return len(shape) <= len(target) and all(n in (1, m) for n, m in pairs)


def cast(leaf: Leaf, dtype: DType) -> jax.Array:
    """A leaf as a strongly typed JAX array of any dtype; the leaf itself if it is one."""
    if getattr(leaf, "dtype", None) == dtype and getattr(leaf, "weak_type", True) is False:
        return leaf
    leaf = native(leaf)
    if is_python_number(leaf):
        leaf = _scalar_type(leaf)(leaf)  # JAX makes a weakly typed array of a subclass
    if kind(dtype) != "complex" and kind(dtype_of(leaf)) == "complex":
        leaf = lax.real(leaf)
    return lax.convert_element_type(leaf, dtype)


def cast_float(leaf: Leaf, dtype: DType) -> Leaf:
    """Returns a floating leaf in another dtype; any other leaf as it is."""
    return cast(leaf, dtype) if kind(dtype_of(leaf)) == "float" else leaf


def widen_float(leaf: Leaf, dtype: DType) -> Leaf:
    """Returns a narrower floating leaf in a wider dtype; any other leaf as it is."""
    leaf_dtype = dtype_of(leaf)
    is_narrower = kind(leaf_dtype) == "float" and leaf_dtype.itemsize < dtype.itemsize
    return cast(leaf, dtype) if is_narrower else leaf


def wraps(leaf: Leaf, dtype: DType) -> bool:
    """Whether a Python or NumPy integer does not fit into a dtype of integers."""
    if isinstance(leaf, jax.Array) or {kind(dtype), kind(dtype_of(leaf))} != {"int"}:
        return False
    info, numbers = jnp.iinfo(dtype), np.asarray(leaf)
    return bool(np.any((numbers < int(info.min)) | (numbers > int(info.max))))


def promoted(*dtypes: DType) -> DType:
    """The dtype that these promote to, even if the caller forbids promotion."""
    with jax.numpy_dtype_promotion("standard"):
        return functools.reduce(_promoted, dtypes)


def promoted_weakly(weak: Leaf, other: Leaf) -> DType:
    """The dtype that a JAX loop gives to a weakly typed leaf of its first carry."""
    try:
        with jax.numpy_dtype_promotion("standard"):
            return jnp.result_type(weak, other)
    except (TypeError, ValueError):  # a float with int4, a complex number with float8
        return dtype_of(weak)


def _promoted(a: DType, b: DType) -> DType:
    return a if a == b else jnp.promote_types(_promotable(a), _promotable(b))


def _promotable(dtype: DType) -> DType:
    """float32 for a float of 8 bits or fewer, which has no implicit promotion."""
    is_small = kind(dtype) == "float" and dtype.itemsize == 1
    return jnp.dtype("float32") if is_small else dtype
