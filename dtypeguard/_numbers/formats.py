"""The dtypes in which a program is run, and its products as a device computes them.

A device that rounds float32 operands multiplies the rounded ones exactly, and adds in
float32. With three passes, products with what rounding has taken away are added.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.arguments import shown
from .._leaves.dtypes import bits, kind
from .._leaves.types import DType, Equation, Leaf
from .._program.jaxprs import PRODUCTS, Arrays
from .evaluate import evaluate, unchanged_dtype
from .primitives import Results


class Algorithm(NamedTuple):
    """How a product of float32 operands is computed.

    Attributes:
        name: of the format of the operands.
        digits: their binary digits behind the first.
        has_rest: whether products with the rest of each operand, rounded alike, are added.
    """

    name: str
    digits: int
    has_rest: bool = False

    def rounded(self, operand: Leaf) -> Leaf:
        """Returns an operand with these digits."""
        if operand.dtype != _SINGLE:
            return operand
        return lax.reduce_precision(operand, 8, self.digits)

    def rest(self, operand: Leaf) -> Leaf:
        """Returns what rounding takes from an operand, rounded."""
        rest = operand - self.rounded(operand)
        # Infinity less infinity would make the product NaN.
        is_finite = jnp.isfinite(rest)
        finite_rest = jnp.where(is_finite, rest, 0)
        return self.rounded(finite_rest)


IEEE_FLOAT32 = Algorithm("float32", 23)
_ONE_PASS = Algorithm("bfloat16", 7)
_THREE_PASSES = Algorithm("bfloat16", 7, has_rest=True)
_TENSORFLOAT32 = Algorithm("TF32", 10)
_SINGLE = np.dtype("float32")


def _is_product(eqn: Equation) -> bool:
    """Returns whether an equation is a product that rounding applies to."""
    if eqn.primitive.name not in PRODUCTS:
        return False
    dtypes = [var.aval.dtype for var in eqn.invars[:2]]
    # A product with float64 runs in float64.
    return _SINGLE in dtypes and np.float64 not in dtypes


def _has_vector(eqn: Equation) -> bool:
    """Returns whether an equation multiplies by one vector, and not by a batch of them."""
    if eqn.primitive.name != "dot_general":
        return False
    (contracting, _), _ = eqn.params["dimension_numbers"]
    first, second = eqn.invars
    contracted = 1
    for axis in contracting:
        contracted *= first.aval.shape[axis]
    # A vector has nothing else.
    return contracted in (first.aval.size, second.aval.size)


class Formats(NamedTuple):
    """The dtypes in which a program computes as written, and in wide types.

    Attributes:
        wide: the dtype of what is wide, at least.
        narrow: if given, the program is run as if all floats were at most this wide.
        products: if given, the setting by which products of float32 operands are computed;
            all else is as the program has it, and not wider.
        mended: the level of a product that is to be computed wider.
    """

    wide: np.dtype
    narrow: np.dtype | None = None
    products: str | None = None
    mended: str = "HIGHEST"

    @property
    def levels(self) -> Sequence[str | None]:
        """The precisions of a wide product, the cheapest first; None where a dtype is."""
        if self.products is None:
            return [None]
        default, high, _ = _SETTINGS[self.products]
        if high == default:
            return ["HIGHEST"]
        return ["HIGH", "HIGHEST"]

    def written(self, dtype: DType) -> DType:
        """Returns the dtype in which the program computes a value."""
        narrow = self.narrow
        if narrow is None:
            return dtype
        if kind(dtype) != "float":
            return dtype
        # With equal bits the narrow one counts: float16 as if it were bfloat16.
        if narrow.itemsize <= dtype.itemsize:
            return narrow
        return dtype

    def widened(self, dtype: DType) -> DType:
        """Returns the dtype of the same value where it is wide."""
        if self.products is not None:
            return dtype
        if not 0 < bits(dtype) < bits(self.wide):
            return dtype
        if kind(dtype) == "complex":
            return np.dtype("complex128")
        return self.wide

    def rounds(self, dtype: DType) -> bool:
        """Returns whether a value of this dtype is narrower as written than wide."""
        wide_dtype = self.widened(dtype)
        return wide_dtype != self.written(dtype)

    def algorithm(self, eqn: Equation, is_wide: bool) -> Algorithm | None:
        """Returns how a device computes an equation; None if it is as JAX has it."""
        if self.products is None or not _is_product(eqn):
            return None
        # XLA makes a product with a vector a multiply and a sum.
        if self.products in DEVICES and _has_vector(eqn):
            return IEEE_FLOAT32
        precision = eqn.params.get("precision") or ()
        if not isinstance(precision, tuple):  # an algorithm that is preset
            return IEEE_FLOAT32
        levels = [level.value for level in precision]
        if is_wide:
            mended = lax.Precision[self.mended]
            levels.append(mended.value)
        # XLA takes the highest of both operands.
        highest = max(levels, default=0)
        return _SETTINGS[self.products][highest]


def product(eqn: Equation, operands: Arrays, algorithm: Algorithm) -> Results:
    """Returns the result of a product as a device computes it."""
    # An accelerator would round what it is given here as well.
    highest = lax.Precision.HIGHEST
    precision = (highest, highest)
    params = dict(eqn.params, precision=precision, preferred_element_type=_SINGLE)
    exact = eqn.replace(params=params)
    first, second, *sizes = operands

    def multiplied(first_part, second_part):
        parts = [first_part, second_part, *sizes]
        (result,) = evaluate(exact, parts, unchanged_dtype)
        return result

    rounded = algorithm.rounded(first)
    second_rounded = algorithm.rounded(second)
    total = multiplied(rounded, second_rounded)
    if algorithm.has_rest:
        rest = multiplied(algorithm.rest(first), second_rounded)
        second_rest = multiplied(rounded, algorithm.rest(second))
        # The smallest first.
        total = rest + second_rest + total
    dtype = eqn.outvars[0].aval.dtype
    return [lax.convert_element_type(total, dtype)]


# Their matrix units multiply no vectors: of a TPU, JAX's issue 16349 says so; of GPUs XLA's
# source does, in `ShouldStrengthReduceDotToReduce`.
DEVICES = {"tpu": "a TPU", "a100": "an A100", "h100": "an H100"}
_OF_BFLOAT16 = (_ONE_PASS, _THREE_PASSES, IEEE_FLOAT32)
_OF_TENSORFLOAT32 = (_TENSORFLOAT32, _TENSORFLOAT32, IEEE_FLOAT32)
# What they do where a program asks for nothing, for `Precision.HIGH` and for `HIGHEST`.
_SETTINGS = {
    "tpu": _OF_BFLOAT16,
    "bfloat16": _OF_BFLOAT16,
    "a100": _OF_TENSORFLOAT32,
    "h100": _OF_TENSORFLOAT32,
    "tensorfloat32": _OF_TENSORFLOAT32,
    "bfloat16_3x": (_THREE_PASSES, _THREE_PASSES, IEEE_FLOAT32),
    "float32": (IEEE_FLOAT32, IEEE_FLOAT32, IEEE_FLOAT32),
}


def checked_products(name: object) -> str:
    """Returns a setting of products in lower case.

    Raises:
        TypeError: if it is no name.
        ValueError: if it is not known.
    """
    if isinstance(name, str) and name.lower() in _SETTINGS:
        return name.lower()
    error = ValueError
    if not isinstance(name, str):
        error = TypeError
    raise error(
        f"audit_precision got matmul_precision={shown(name)}, which is not simulated. "
        f'Write matmul_precision="tpu", or one of {", ".join(_SETTINGS)}.'
    )


def products_text(name: str) -> str:
    """Returns how a sentence on a setting of products begins."""
    # A device is named as such, since its matrix units decide.
    if name in DEVICES:
        default, *_ = _SETTINGS[name]
        return f"as on {DEVICES[name]} ({default.name} products)"
    return f"with {name} products"
