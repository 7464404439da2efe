"""The type of a leaf: one record, which messages print and decisions compare."""

import dataclasses

import numpy as np

from .dtypes import dtype_of, is_weak
from .types import DType, Leaf


@dataclasses.dataclass(frozen=True)
class LeafType:
    """The type of an array leaf. Its text is `float32[3]` or `int32[],weak`."""

    dtype: DType
    weak: bool = False
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.weak:
            return f"{self.without_weak},weak"
        return self.without_weak

    @property
    def without_weak(self) -> str:
        """The dtype and the shape: `float32[3]`."""
        sizes = ",".join(map(str, self.shape))
        return f"{self.dtype}[{sizes}]"

    @property
    def without_shape(self) -> str:
        """The dtype, and whether it is weak: `float32 (weak)`."""
        if self.weak:
            return f"{self.dtype} (weak)"
        return str(self.dtype)


def leaf_type(leaf: Leaf) -> LeafType | None:
    """Returns the type of a leaf; None for a leaf without a dtype, such as a function."""
    return _type_in(leaf, getattr(leaf, "dtype", dtype_of(leaf)))


def traced_type(leaf: Leaf) -> LeafType | None:
    """Returns the type of a leaf under `jit`: with x64 off, float64 of NumPy is float32."""
    return _type_in(leaf, dtype_of(leaf) or getattr(leaf, "dtype", None))


def _type_in(leaf: Leaf, dtype: DType) -> LeafType | None:
    if dtype is None:
        return None
    # A Python bool promotes like an array: JAX has no weak bools.
    weak = is_weak(leaf) and not isinstance(leaf, bool)
    shape = tuple(np.shape(leaf))
    return LeafType(dtype, weak, shape)


def type_or_class(leaf: Leaf) -> LeafType | str:
    """Returns the type of a leaf; for no array, the name of its class."""
    described = leaf_type(leaf)
    if described is None:
        return type(leaf).__name__
    return described


def type_text(leaf: Leaf) -> str:
    """Returns the dtype and the shape of a leaf for a message, without its weakness."""
    described = type_or_class(leaf)
    if isinstance(described, LeafType):
        return described.without_weak
    return described
