"""The dtypes in which a program is run."""

from typing import Any, NamedTuple

import numpy as np

from .._leaves.dtypes import kind
from .._leaves.types import DType, Equation
from .products import Algorithm, Products

# A number with so many binary digits was probably meant as it is, as integers are.
_FEW_DIGITS = 4


def has_few_digits(numbers: np.ndarray) -> np.ndarray:
    """Which of some finite numbers have few binary digits."""
    digits = np.ldexp(np.frexp(numbers)[0], _FEW_DIGITS)
    return digits == np.round(digits)


class Formats(NamedTuple):
    """The dtypes in which a program computes as written, and in wide types.

    Attributes:
        wide: the dtype of what is wide, at least.
        narrow: if given, the program is run as if all floats were at most this wide.
        is_own: whether what is not narrow is as the program has it, and not wider.
        products: if given, what a device makes of products of float32 operands.
    """

    wide: np.dtype
    narrow: np.dtype | None = None
    is_own: bool = False
    products: Products | None = None

    @property
    def names(self) -> dict[str, Any]:
        """Their names, as reports have them."""
        narrow = None if self.narrow is None else str(self.narrow)
        return {"wide": str(self.wide), "narrow": narrow}

    def written(self, dtype: DType) -> DType:
        """The dtype in which the program computes a value."""
        if self.narrow is None or kind(dtype) != "float":
            return dtype
        return min(self.narrow, dtype, key=lambda each: each.itemsize)

    def widened(self, dtype: DType) -> DType:
        """The dtype of the same value where it is wide."""
        if self.is_own:
            return dtype
        if kind(dtype) == "float" and dtype.itemsize < self.wide.itemsize:
            return self.wide
        is_double = self.wide == np.float64 and kind(dtype) == "complex"
        return np.dtype("complex128") if is_double else dtype

    def rounds(self, dtype: DType) -> bool:
        """Whether a value of this dtype is narrower as written than wide."""
        is_float = kind(dtype) in ("float", "complex")
        return is_float and self.widened(dtype) != self.written(dtype)

    def algorithm(self, eqn: Equation, is_wide: bool) -> Algorithm | None:
        """How a device computes an equation; None if it is as JAX has it."""
        return None if self.products is None else self.products.algorithm(eqn, is_wide)
