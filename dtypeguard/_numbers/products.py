"""Products of float32 operands as a device computes them: of parts with fewer digits.

A device that rounds them multiplies the rounded operands exactly, and adds in float32.
With several passes, an operand is a sum of parts, and the products of the greatest are
added.
"""

import dataclasses
import difflib
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.arguments import shown
from .._leaves.dtypes import bits, kind
from .._leaves.types import DType, Equation, Leaf
from .._program.graph import PRODUCTS
from .evaluate import evaluate, own_dtype, round_to


class Algorithm(NamedTuple):
    """How a product of float32 operands is computed.

    Attributes:
        dtype: the name of the format of the parts; None if operands are not rounded.
        parts: of how many parts an operand is the sum.
        order: of which pairs products are made: those whose numbers, from 0 for the
            greatest part on, add up to this at most.
    """

    dtype: str | None = None
    parts: int = 1
    order: int = 0

    @property
    def pairs(self) -> list[tuple[int, ...]]:
        """The parts that are multiplied, the smallest first."""
        every = itertools.product(range(self.parts), repeat=2)
        return sorted((x for x in every if sum(x) <= self.order), key=sum, reverse=True)

    def split(self, operand: Leaf) -> list[Leaf]:
        """The parts of an operand, the greatest first."""
        if self.dtype is None or not _is_single(operand.dtype):
            return [operand]
        parts, rest = [], operand
        for _ in range(self.parts):
            part = self._rounded(rest)
            parts.append(part)
            rest = rest - part
            rest = jnp.where(jnp.isfinite(rest), rest, jnp.zeros_like(rest))
        return parts

    def _rounded(self, x: Leaf) -> Leaf:
        if kind(x.dtype) == "complex":
            return lax.complex(self._rounded(lax.real(x)), self._rounded(lax.imag(x)))
        if self.dtype == "tensorfloat32":
            return lax.reduce_precision(x, 8, 10)
        return round_to(x, jnp.dtype(self.dtype))


FLOAT32 = Algorithm()
# By the names of `jax.lax.DotAlgorithmPreset`, those whose sums are in float32.
ALGORITHMS = {
    "F16_F16_F32": Algorithm("float16"),
    "BF16_BF16_F32": Algorithm("bfloat16"),
    "BF16_BF16_F32_X3": Algorithm("bfloat16", 2, 1),
    "BF16_BF16_F32_X6": Algorithm("bfloat16", 3, 2),
    "BF16_BF16_F32_X9": Algorithm("bfloat16", 3, 4),
    "TF32_TF32_F32": Algorithm("tensorfloat32"),
    "TF32_TF32_F32_X3": Algorithm("tensorfloat32", 2, 1),
    "F32_F32_F32": FLOAT32,
}


class Level(NamedTuple):
    """A `jax.lax.Precision` in place of the default."""

    name: str
    algorithm: Algorithm


class Exempt(NamedTuple):
    """The matrix products that a device does not round: XLA makes them multiply and add.

    With a vector and fewer elements than `vector` together, with one of a batch of vectors
    if `batched`, and with fewer elements than `any`.
    """

    vector: float = 0
    batched: bool = False
    any: float = 0

    def has(self, eqn: Equation) -> bool:
        """Whether an equation is one of them."""
        if eqn.primitive.name != "dot_general":
            return False
        contracting, batch = eqn.params["dimension_numbers"]
        shapes = [var.aval.shape for var in eqn.invars[:2]]
        free = [
            math.prod(n for axis, n in enumerate(shape) if axis not in (*used, *batched))
            for shape, used, batched in zip(shapes, contracting, batch)
        ]
        # As XLA counts them: of one of a batch.
        size = math.prod(shapes[0][axis] for axis in contracting[0]) * sum(free)
        is_vector = 1 in free and (self.batched or not batch[0])
        return size < self.any or (is_vector and size < self.vector)


NONE_EXEMPT = Exempt()


@dataclasses.dataclass(frozen=True)
class Products:
    """What a device makes of products of float32 operands.

    Attributes:
        name: of the setting, and how a sentence on it begins.
        default: what it does where a program asks for nothing; and for `Precision.HIGH`.
        levels: what a program may ask for instead, the cheapest first.
        mended: what an equation does that is to be computed wider.
        exempt: which of them it does not round.
    """

    name: str
    begin: str
    default: Algorithm
    high: Algorithm
    levels: tuple[Level, ...] = ()
    mended: Algorithm = FLOAT32
    exempt: Exempt = NONE_EXEMPT

    def algorithm(self, eqn: Equation, is_wide: bool) -> Algorithm | None:
        """How an equation is computed; None if it is no product of such operands."""
        if not _is_product(eqn):
            return None
        asked = eqn.params.get("precision")
        if not isinstance(asked, (tuple, type(None))):  # it is left alone on both sides
            return ALGORITHMS.get(getattr(asked, "name", ""))
        written = self._written(eqn, asked)
        return written if written is FLOAT32 or not is_wide else self.mended

    def rounds(self, eqn: Equation) -> bool:
        """Whether the operands of an equation are rounded."""
        asked = eqn.params.get("precision")
        is_level = isinstance(asked, (tuple, type(None)))
        return _is_product(eqn) and is_level and self._written(eqn, asked) is not FLOAT32

    def _written(self, eqn: Equation, asked: tuple[lax.Precision, ...] | None) -> Algorithm:
        if self.exempt.has(eqn):
            return FLOAT32
        # XLA takes the highest of both operands.
        level = max((each.value for each in asked or ()), default=0)
        return (self.default, self.high, FLOAT32)[level]


def product(eqn: Equation, operands: Sequence[Leaf], algorithm: Algorithm) -> list[Leaf]:
    """The result of a product as a device computes it."""
    # An accelerator would round what it is given here as well.
    highest = (lax.Precision.HIGHEST,) * 2
    eqn = eqn.replace(params={**eqn.params, "precision": highest})
    left, right, *others = operands
    lefts, rights = algorithm.split(left), algorithm.split(right)
    known = ((i, j) for i, j in algorithm.pairs if i < len(lefts) and j < len(rights))
    pairs = [(lefts[i], rights[j]) for i, j in known]
    if len(pairs) == 1:
        return evaluate(eqn, [*pairs[0], *others], own_dtype)
    made = [evaluate(eqn, [*pair, *others], _at_least_single)[0] for pair in pairs]
    return [lax.convert_element_type(sum(made[1:], made[0]), eqn.outvars[0].aval.dtype)]


def products_named(name: object) -> Products:
    """The products that a setting names.

    Raises:
        TypeError: if it is no name.
        ValueError: if it is not known, with the nearest that is.
    """
    text = getattr(name, "name", name)
    if not isinstance(text, str):
        raise TypeError(
            f"audit_precision got matmul_precision={shown(name)}. Write a device or a "
            'precision, such as matmul_precision="tpu" or "tensorfloat32".'
        )
    known = {**_NAMED, **{each: each for each in ALGORITHMS}}
    right = {each.lower(): each for each in known}.get(text.lower())
    if right is None:
        begins = [each for each in known if each.startswith(text.lower())]
        (near, *_) = begins or difflib.get_close_matches(text, known, 1) or ["tpu"]
        raise ValueError(
            f"audit_precision got matmul_precision={text!r}, which is not simulated. Write "
            f'matmul_precision="{near}", or one of {", ".join(known)}.'
        )
    default = ALGORITHMS[known[right]]
    passes = len(default.pairs)
    is_short = default.dtype == "bfloat16" and passes < 3
    high = ALGORITHMS["BF16_BF16_F32_X3"] if is_short else default
    levels = Level("HIGH", high), Level("HIGHEST", FLOAT32)
    shown_as = "TF32" if default.dtype == "tensorfloat32" else default.dtype or "float32"
    more = f" in {passes} passes" if passes > 1 else ""
    begin = f"with {shown_as} products{more}"
    if right in DEVICES:
        begin = f"as on {DEVICES[right]} ({shown_as} products)"
    exempt = _EXEMPT.get(right, NONE_EXEMPT)
    return Products(right, begin, default, high, levels[not is_short :], exempt=exempt)


DEVICES = {"tpu": "a TPU", "a100": "an A100", "h100": "an H100"}
# Of a TPU, JAX's issue 16349 says so of a vector and a matrix. Of GPUs, XLA's source does:
# `ShouldStrengthReduceDotToReduce`, and `xla_gpu_gemm_rewrite_size_threshold`.
_ON_GPU = Exempt(vector=1e7, batched=True, any=100)
_EXEMPT = {"tpu": Exempt(vector=math.inf), "a100": _ON_GPU, "h100": _ON_GPU}
_NAMED = {
    **dict.fromkeys(("tpu", "bfloat16"), "BF16_BF16_F32"),
    **dict.fromkeys(("a100", "h100", "tensorfloat32"), "TF32_TF32_F32"),
    "bfloat16_3x": "BF16_BF16_F32_X3",
    "float32": "F32_F32_F32",
}


def _is_product(eqn: Equation) -> bool:
    """Whether an equation is a product that rounding applies to."""
    if eqn.primitive.name not in PRODUCTS:
        return False
    dtypes = [var.aval.dtype for var in eqn.invars[:2]]
    return any(map(_is_single, dtypes)) and all(
        _is_single(x) or 0 < bits(x) <= 32 for x in dtypes
    )


def _is_single(dtype: DType) -> bool:
    return dtype in (np.float32, np.complex64)


def _at_least_single(dtype: DType) -> DType:
    is_narrow = kind(dtype) == "float" and bits(dtype) < 32
    return np.dtype("float32") if is_narrow else dtype
