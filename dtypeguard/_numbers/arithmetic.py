"""What one equation makes of its operands: as written, wide, or the error of it alone."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.dtypes import bits, kind
from .._leaves.types import DType, Leaf
from .._program.program import Node
from . import primitives
from .evaluate import (
    DtypeOf,
    as_dtype,
    binding,
    evaluate,
    own_dtype,
    round_inwards,
    round_to,
    rounded_as,
)
from .formats import Formats, product
from .plans import ROUNDED, WIDE, WRITTEN, Computes
from .primitives import is_inexact
from .program import NumericProgram

# What an equation raises that takes no operands of another dtype.
REFUSALS = (TypeError, ValueError, NotImplementedError)


class Either(NamedTuple):
    """A value that has a form of its own in wide types: a constant, a sample, a number."""

    own: Leaf
    wide: Leaf
    meant: np.ndarray | None = None  # as it was meant, if its line may round that


Value = Leaf | Either


def own_form(value: Value) -> Leaf:
    return value.own if isinstance(value, Either) else value


def wide_form(value: Value) -> Leaf:
    return value.wide if isinstance(value, Either) else value


_Evaluator = Callable[..., list[Leaf]]
_COMPILED, _MOST_COMPILED = dict[object, _Evaluator](), 4096


def _compiled_equation(same: object, run: _Evaluator) -> _Evaluator:
    """What evaluates an equation, compiled once for all programs that compute the same."""
    if len(_COMPILED) > _MOST_COMPILED:
        _COMPILED.clear()
    with contextlib.suppress(TypeError):  # a parameter has no hash
        run = _COMPILED.setdefault(same, jax.jit(run))
    return run


@dataclasses.dataclass
class Arithmetic:
    """Computes equations in the dtypes that their entries say.

    Args:
        program: the program, which keeps what evaluates equations.
        formats: its dtypes.
        is_traced: whether XLA compiles what is computed, and must leave out no rounding.
        scale: a power of two. If given, what a backward pass makes wide is rounded as if it
            were multiplied by this, as it is where the loss is.
    """

    program: NumericProgram
    formats: Formats
    is_traced: bool
    scale: float | None

    # Values

    def constant(self, array: Leaf, meant: np.ndarray | None = None) -> Value:
        """What the program has of its own, as it is and as it was meant, if known."""
        # A program holds NumPy's arrays too, on JAX 0.12 in a class of JAX's own.
        array = array if isinstance(array, jax.Array) else jnp.asarray(array)
        if not is_inexact(array):
            return array
        own = as_dtype(array, self.formats.written(array.dtype))
        dtype = self.formats.widened(array.dtype)
        wide = as_dtype(array, dtype) if meant is None else jnp.asarray(meant, dtype)
        return Either(own, wide, meant)

    def sample(self, array: Leaf) -> Value:
        """What `jax.random` draws: below 1 stays below 1 in a narrow dtype."""
        if not is_inexact(array):
            return array
        own = round_inwards(array, self.formats.written(array.dtype))
        return Either(own, as_dtype(array, self.formats.widened(array.dtype)))

    def as_written(self, value: Value, dtype: DType) -> Leaf:
        """A value as a narrow equation takes it, where the program has this dtype."""
        array = own_form(value)
        narrow = as_dtype(array, self.formats.written(dtype))
        return narrow if narrow is array else self._kept(narrow)

    def as_wide(self, value: Value, dtype: DType) -> Leaf:
        """A value as a wide equation takes it."""
        array = wide_form(value) if self.scale is None else own_form(value)
        return as_dtype(array, self.formats.widened(dtype))

    # Equations

    def own(self, node: Node, values: Sequence[Value]) -> list[Leaf]:
        """The results of an equation in the dtypes that the program has."""
        pairs = zip(map(wide_form, values), node.eqn.invars)
        operands = [as_dtype(x, v.aval.dtype) if is_inexact(x) else x for x, v in pairs]
        return evaluate(node.eqn, operands, own_dtype)

    def computed(
        self,
        node: Node,
        values: Sequence[Value],
        entry: int,
        rounds_constant: bool = False,
    ) -> tuple[list[Leaf], list[Leaf]]:
        """The operands and the results of an equation without others inside it."""
        entry = ROUNDED if rounds_constant and node.constant is not None else entry
        if rounds_constant or entry == ROUNDED:
            is_number = lambda v: isinstance(v, Either) and v.meant is not None
            values = [v.own if is_number(v) else v for v in values]
        settle = self.as_written if entry == WRITTEN else self.as_wide
        operands = [settle(x, v.aval.dtype) for x, v in zip(values, node.eqn.invars)]
        try:
            if entry == WRITTEN:
                made = self._written(node, operands)
            elif entry == ROUNDED and node.rounds:
                made = self._rounded(node, values, operands)
            else:
                made = self._evaluated(node, WIDE, operands)
        except REFUSALS:  # it does not take wider operands
            self.program.leave_out(node.stack)
            made = self.own(node, values)
        made = [*map(self._kept, made)]
        if node.is_backward and self.scale is not None:
            dtypes = [self.formats.written(v.aval.dtype) for v in node.eqn.outvars]
            made = self._as_if_scaled(made, dtypes)
        return operands, made

    def named(
        self, node: Node, values: Sequence[Value], computes: Computes
    ) -> tuple[list[Leaf], list[Leaf]]:
        """The operands and the results of an equation in a dtype that a plan names.

        With a loss scale, those of a backward pass stay in the dtype as written.
        """
        own = [*map(own_form, values)]
        dtype, result = computes
        if node.is_backward and self.scale is not None:
            operands, made = self.computed(node, own, WRITTEN)
            return operands, self._as_if_scaled(made, [result] * len(made))
        operands = [as_dtype(x, dtype) if kind(x.dtype) == "float" else x for x in own]
        try:
            made = self._evaluated(node, computes, operands)
        except REFUSALS:
            _, written = self.computed(node, own, WRITTEN)
            made = [as_dtype(x, result) if is_inexact(x) else x for x in written]
        return own, [*map(self._kept, made)]

    def _written(self, node: Node, operands: list[Leaf]) -> list[Leaf]:
        narrow = self.formats.narrow
        is_own = node.name in primitives.OF_OWN_DTYPES
        if narrow is None or (narrow.itemsize > 1 and not is_own):
            return self._evaluated(node, WRITTEN, operands)
        # Nothing computes in 8 bits: results are rounded to them.
        return [self.as_written(x, x.dtype) for x in self.own(node, operands)]

    def _evaluated(
        self, node: Node, entry: int | Computes, operands: list[Leaf]
    ) -> list[Leaf]:
        """The results of an equation; outside of a trace, by a function that is compiled.

        To bind a primitive takes twice as long as to call what JAX compiles of it.
        """
        formats = self.formats
        if algorithm := formats.algorithm(node.eqn, entry == WIDE):
            return product(node.eqn, operands, algorithm)
        dtype_of: DtypeOf = formats.widened if entry == WIDE else formats.written
        if isinstance(entry, Computes):
            dtype_of = entry.of
        if self.is_traced:
            return evaluate(node.eqn, operands, dtype_of)
        key = node.number, entry, formats
        if key not in self.program.functions:
            self.program.functions[key] = _compiled_equation(*binding(node.eqn, dtype_of))
        return self.program.functions[key](*operands)

    def _rounded(
        self, node: Node, values: Sequence[Value], operands: list[Leaf]
    ) -> list[Leaf]:
        """The wide results, rounded as the equation rounds on operands as written."""
        if self.formats.products is not None:
            return self._written(node, operands)
        exact = self._evaluated(node, WIDE, operands)
        dtypes = [var.aval.dtype for var in node.eqn.invars]
        narrow = [*map(self.as_written, values, dtypes)]
        own = [*map(self._kept, self._written(node, narrow))]
        from_narrow = self._evaluated(node, WIDE, [*map(self.as_wide, narrow, dtypes)])
        triples = zip(own, exact, from_narrow)
        return [rounded_as(*each) if is_inexact(each[1]) else each[1] for each in triples]

    def _kept(self, x: Leaf) -> Leaf:
        """A result; if it is narrow, XLA shall not keep it wide."""
        if not self.is_traced or not is_inexact(x):
            return x
        is_narrow = bits(x.dtype) < 32 or self.formats.widened(x.dtype) != x.dtype
        return lax.optimization_barrier(x) if is_narrow else x

    def _as_if_scaled(self, made: list[Leaf], dtypes: Sequence[DType]) -> list[Leaf]:
        """What a backward pass makes in these dtypes where the loss is scaled."""
        scale = jnp.asarray(self.scale)
        return [
            round_to(x * scale.astype(x.dtype), dtype) / scale.astype(x.dtype)
            if kind(dtype) == "float" and 0 < bits(dtype) < bits(x.dtype)
            else x
            for x, dtype in zip(made, dtypes)
        ]
