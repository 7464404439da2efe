"""The values, dtypes and lines of a paired program."""

import re
from typing import Any, NamedTuple

import numpy as np

from .._leaves.casts import Cast
from .._leaves.dtypes import kind
from .._leaves.types import DType, Equation, Leaf
from .._program.graph import Stack
from .._source.origin import Origin
from .products import Algorithm, Products


class Value(NamedTuple):
    """A value of the program.

    Attributes:
        narrow: as the program computes it.
        wide: the wide value beside it; None where it is no float.
    """

    narrow: Leaf
    wide: Leaf = None

    @property
    def either(self) -> Leaf:
        """The wide value if there is one."""
        return self.narrow if self.wide is None else self.wide


class Formats(NamedTuple):
    """The dtypes of a paired program.

    Attributes:
        wide: the dtype of the wide values, at least.
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
        """The dtype of the wide value beside it."""
        if self.is_own:
            return dtype
        if kind(dtype) == "float" and dtype.itemsize < self.wide.itemsize:
            return self.wide
        is_double = self.wide == np.float64 and kind(dtype) == "complex"
        return np.dtype("complex128") if is_double else dtype

    def algorithm(self, eqn: Equation, is_wide: bool) -> Algorithm | None:
        """How a device computes an equation; None if it is as JAX has it."""
        return None if self.products is None else self.products.algorithm(eqn, is_wide)


class Line:
    """A line of source that rounds.

    Attributes:
        origin: where it is; None for the inputs of the program, which `narrow` rounds, and
            without a file for what JAX computes with no line of the user's around it.
        dtypes: the dtypes in which it computes.
        primitives: what it computes.
        constants: the numbers that were rounded when the program was traced, with what
            became of them.
        casts: the casts of dtypeguard that it stands for, if it is none of the user's.
        only_casts: whether it rounds by casts alone that are written on it.
        is_narrowed: whether it rounds only because the program is run in `narrow`.
        is_in_loop: whether a loop computes it.
        is_backward: whether the backward pass of a gradient computes some of it.
        scopes: those of `jax.named_scope` in which it is computed.
        products: the products on it whose operands a device rounds, with the equations
            around them.
    """

    def __init__(self, origin: Origin | None):
        self.origin = origin
        self.casts: dict[Cast, None] = {}
        self.dtypes: set[str] = set()
        self.primitives: set[str] = set()
        self.constants: dict[float, float] = {}
        self.only_casts = True
        self.is_narrowed = True
        self.is_in_loop = False
        self.is_backward = False
        self.scopes: dict[tuple[str, ...], None] = {}
        self.products: dict[tuple[int, ...], Stack] = {}

    @property
    def scope(self) -> str:
        """What its scopes have in common, as `encoder/block_*`; a number may differ."""
        common = []
        for names in zip(*self.scopes):
            patterns = {_NUMBER.sub("*", name) for name in names}
            if len(patterns) > 1:
                break
            common.append(names[0] if len({*names}) == 1 else patterns.pop())
        return "/".join(common)


_NUMBER = re.compile(r"\d+")
# The line of what JAX computes with no line of the user's around it.
NOWHERE = Origin("", 0, "", "")
