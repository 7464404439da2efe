"""The dtypes in which a program is run, and its products as a device computes them.

A device that rounds float32 operands multiplies the rounded ones exactly, and adds in
float32. With several passes, an operand is a sum of parts with fewer digits, and the
products of the greatest are added.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.arguments import shown
from .._leaves.dtypes import bits, kind
from .._leaves.types import DType, Equation, Leaf
from .._program.jaxprs import PRODUCTS
from .evaluate import evaluate, round_to


class Algorithm(NamedTuple):
    """How a product of float32 operands is computed.

    Attributes:
        dtype: the name of the format of the parts; None if operands are not rounded.
        parts: of how many parts an operand is the sum. Products are made of those whose
            numbers, from 0 for the greatest part on, add up to less than this.
    """

    dtype: str | None = None
    parts: int = 1

    def split(self, operand: Leaf) -> list[Leaf]:
        """Returns the parts of an operand, the greatest first."""
        if self.dtype is None or not _is_single(operand.dtype):
            return [operand]
        parts: list[Leaf] = []
        rest = operand
        for _ in range(self.parts):
            part = self._rounded(rest)
            parts.append(part)
            rest = rest - part
            # Infinity less infinity would make the other parts NaN.
            rest = jnp.where(jnp.isfinite(rest), rest, jnp.zeros_like(rest))
        return parts

    def _rounded(self, x: Leaf) -> Leaf:
        if kind(x.dtype) == "complex":
            return lax.complex(self._rounded(lax.real(x)), self._rounded(lax.imag(x)))
        if self.dtype == "tensorfloat32":
            return lax.reduce_precision(x, 8, 10)
        return round_to(x, jnp.dtype(self.dtype))


IEEE_FLOAT32 = Algorithm()
_ONE_PASS = Algorithm("bfloat16")
_THREE_PASSES = Algorithm("bfloat16", 2)
_TENSORFLOAT32 = Algorithm("tensorfloat32")


class Exempt(NamedTuple):
    """The matrix products that a device does not round: XLA makes them multiply and add.

    With a vector and fewer elements than `vector` together, with one of a batch of vectors
    if `batched`, and with fewer elements than `any`.
    """

    vector: float = 0
    batched: bool = False
    any: float = 0

    def has(self, eqn: Equation) -> bool:
        """Returns whether an equation is one of them."""
        if eqn.primitive.name != "dot_general":
            return False
        contracting, batch = eqn.params["dimension_numbers"]
        rows = _count_free(eqn, 0)
        columns = _count_free(eqn, 1)
        shape = eqn.invars[0].aval.shape
        terms = math.prod(shape[axis] for axis in contracting[0])
        # As XLA counts them: of one of a batch.
        size = terms * (rows + columns)
        if size < self.any:
            return True
        is_alone = self.batched or not batch[0]
        return is_alone and 1 in (rows, columns) and size < self.vector


def _count_free(eqn: Equation, operand: int) -> int:
    """Returns the size of the axes that an operand of a product gives to its result."""
    contracting, batch = eqn.params["dimension_numbers"]
    used_axes = {*contracting[operand], *batch[operand]}
    count = 1
    for axis, size in enumerate(eqn.invars[operand].aval.shape):
        if axis not in used_axes:
            count *= size
    return count


class Products(NamedTuple):
    """What a device makes of products of float32 operands.

    Attributes:
        name: of the setting, and how a sentence on it begins.
        default: what it does where a program asks for nothing; and for `Precision.HIGH`.
        levels: the names of what it may ask for instead, the cheapest first.
        exempt: which of them it does not round.
        mended: the level of an equation that is to be computed wider.
    """

    name: str
    begin: str
    default: Algorithm
    high: Algorithm
    levels: tuple[str, ...]
    exempt: Exempt
    mended: str = "HIGHEST"

    def algorithm(self, eqn: Equation, is_wide: bool) -> Algorithm | None:
        """Returns how an equation is computed; None if it is no product of float32."""
        if not _is_product(eqn):
            return None
        precision = eqn.params.get("precision")
        is_level = precision is None or isinstance(precision, tuple)
        if not is_level or self.exempt.has(eqn):  # a preset is left alone on both sides
            return IEEE_FLOAT32
        # XLA takes the highest of both operands.
        levels = [asked_level.value for asked_level in precision or ()]
        algorithms = (self.default, self.high, IEEE_FLOAT32)
        written = algorithms[max(levels, default=0)]
        if not is_wide or written == IEEE_FLOAT32:
            return written
        # The cheapest level that mends an error is advised.
        return self.high if self.mended == "HIGH" else IEEE_FLOAT32

    def rounds(self, eqn: Equation) -> bool:
        """Returns whether the operands of an equation are rounded."""
        return self.algorithm(eqn, is_wide=False) not in (None, IEEE_FLOAT32)


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

    def written(self, dtype: DType) -> DType:
        """Returns the dtype in which the program computes a value."""
        if self.narrow is None or kind(dtype) != "float":
            return dtype
        # With equal bits the narrow one counts: float16 as if it were bfloat16.
        return self.narrow if self.narrow.itemsize <= dtype.itemsize else dtype

    def widened(self, dtype: DType) -> DType:
        """Returns the dtype of the same value where it is wide."""
        if self.is_own:
            return dtype
        if kind(dtype) == "float" and dtype.itemsize < self.wide.itemsize:
            return self.wide
        if kind(dtype) == "complex" and self.wide == np.float64:
            return np.dtype("complex128")
        return dtype

    def rounds(self, dtype: DType) -> bool:
        """Returns whether a value of this dtype is narrower as written than wide."""
        if kind(dtype) not in ("float", "complex"):
            return False
        return self.widened(dtype) != self.written(dtype)

    def algorithm(self, eqn: Equation, is_wide: bool) -> Algorithm | None:
        """Returns how a device computes an equation; None if it is as JAX has it."""
        if self.products is None:
            return None
        return self.products.algorithm(eqn, is_wide)


def product(eqn: Equation, operands: Sequence[Leaf], algorithm: Algorithm) -> list[Leaf]:
    """Returns the result of a product as a device computes it."""
    # An accelerator would round what it is given here as well.
    highest = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
    eqn = eqn.replace(params={**eqn.params, "precision": highest})
    first_parts = algorithm.split(operands[0])
    second_parts = algorithm.split(operands[1])
    products: list[Leaf] = []
    for number, first in enumerate(first_parts):
        for second in second_parts[: algorithm.parts - number]:
            parts = [first, second, *operands[2:]]
            products.extend(evaluate(eqn, parts, _at_least_single))
    total = functools.reduce(lax.add, reversed(products))  # the smallest first
    return [lax.convert_element_type(total, eqn.outvars[0].aval.dtype)]


# Of a TPU, JAX's issue 16349 says so of a vector and a matrix. Of GPUs, XLA's source does:
# `ShouldStrengthReduceDotToReduce`, and `xla_gpu_gemm_rewrite_size_threshold`.
_ON_GPU = Exempt(vector=1e7, batched=True, any=100)
_EXEMPT = {"tpu": Exempt(vector=math.inf), "a100": _ON_GPU, "h100": _ON_GPU}
DEVICES = {"tpu": "a TPU", "a100": "an A100", "h100": "an H100"}
_SETTINGS = {
    "tpu": _ONE_PASS,
    "bfloat16": _ONE_PASS,
    "a100": _TENSORFLOAT32,
    "h100": _TENSORFLOAT32,
    "tensorfloat32": _TENSORFLOAT32,
    "bfloat16_3x": _THREE_PASSES,
    "float32": IEEE_FLOAT32,
}


def products_named(name: object) -> Products:
    """Returns the products that a setting names.

    Raises:
        TypeError: if it is no name.
        ValueError: if it is not known.
    """
    if not isinstance(name, str) or name.lower() not in _SETTINGS:
        error = ValueError if isinstance(name, str) else TypeError
        raise error(
            f"audit_precision got matmul_precision={shown(name)}, which is not simulated. "
            f'Write matmul_precision="tpu", or one of {", ".join(_SETTINGS)}.'
        )
    setting = name.lower()
    default = _SETTINGS[setting]
    high = _THREE_PASSES if default == _ONE_PASS else default
    levels = ("HIGHEST",) if high == default else ("HIGH", "HIGHEST")
    format = default.dtype or "float32"
    if default == _TENSORFLOAT32:
        format = "TF32"
    begin = f"with {format} products"
    if default.parts > 1:
        begin = f"{begin} in 3 passes"
    # A device is named as such, since its matrix units decide.
    if setting in DEVICES:
        begin = f"as on {DEVICES[setting]} ({format} products)"
    exempt = _EXEMPT.get(setting, Exempt())
    return Products(setting, begin, default, high, levels, exempt)


def _is_product(eqn: Equation) -> bool:
    """Returns whether an equation is a product that rounding applies to."""
    if eqn.primitive.name not in PRODUCTS:
        return False
    has_single = False
    for var in eqn.invars[:2]:
        if _is_single(var.aval.dtype):
            has_single = True
        # A product with float64 runs in float64.
        elif not 0 < bits(var.aval.dtype) <= 32:
            return False
    return has_single


def _is_single(dtype: DType) -> bool:
    return dtype in (np.float32, np.complex64)


def _at_least_single(dtype: DType) -> DType:
    is_narrow = kind(dtype) == "float" and bits(dtype) < 32
    return np.dtype("float32") if is_narrow else dtype
