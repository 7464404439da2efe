"""What one equation makes of its operands: as written, wide, or the error of it alone."""

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
    as_dtype,
    binding,
    evaluate,
    round_inwards,
    round_to,
    rounded_as,
    unchanged_dtype,
)
from .formats import Formats, product
from .plans import ROUNDED, WIDE, WRITTEN, Computes
from .primitives import is_inexact
from .program import NumericProgram

# What an equation raises that takes no operands of another dtype.
REFUSALS = (TypeError, ValueError, NotImplementedError)


class Either(NamedTuple):
    """A value that has a form of its own in wide types: a constant, a sample, a number.

    Attributes:
        written: in the dtype of the program.
        wide: in wide types, as it was meant.
    """

    written: Leaf
    wide: Leaf


Value = Leaf | Either
# What an equation computes in: `WRITTEN`, `WIDE`, `ROUNDED` or the dtypes of a plan.
Width = int | Computes


def own_form(value: Value) -> Leaf:
    """Returns a value as it is written."""
    return value.written if isinstance(value, Either) else value


def wide_form(value: Value) -> Leaf:
    """Returns a value as it is in wide types."""
    return value.wide if isinstance(value, Either) else value


_Evaluator = Callable[..., list[Leaf]]
_COMPILED: dict[object, _Evaluator] = {}
_MOST_COMPILED = 4096


def _compiled_equation(key: object, run: _Evaluator) -> _Evaluator:
    """Returns an evaluator, compiled once for all programs that compute the same."""
    if len(_COMPILED) > _MOST_COMPILED:
        # A search over many programs would fill the memory.
        _COMPILED.clear()
    try:
        return _COMPILED.setdefault(key, jax.jit(run))
    except TypeError:  # a parameter has no hash
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

    def constant(self, array: Leaf, intended: np.ndarray | None = None) -> Value:
        """Returns an array of the program, as written and in wide types."""
        # A program holds NumPy's arrays too, on JAX 0.12 in a class of JAX's own.
        if not isinstance(array, jax.Array):
            array = jnp.asarray(array)
        if not is_inexact(array):
            return array
        written = as_dtype(array, self.formats.written(array.dtype))
        wide_dtype = self.formats.widened(array.dtype)
        if intended is None:
            wide = as_dtype(array, wide_dtype)
        else:
            wide = jnp.asarray(intended, wide_dtype)
        return Either(written, wide)

    def sample(self, array: Leaf) -> Value:
        """Returns random numbers: below 1 stays below 1 in a narrow dtype."""
        if not is_inexact(array):
            return array
        # A uniform sample of 1.0 would make a logarithm of 0.
        written = round_inwards(array, self.formats.written(array.dtype))
        wide = as_dtype(array, self.formats.widened(array.dtype))
        return Either(written, wide)

    def as_written(self, value: Value, dtype: DType) -> Leaf:
        """Returns a value as a narrow equation takes it.

        Args:
            value: the value.
            dtype: that of the program.
        """
        array = own_form(value)
        narrow = as_dtype(array, self.formats.written(dtype))
        return narrow if narrow is array else self._fenced(narrow)

    def as_wide(self, value: Value, dtype: DType) -> Leaf:
        """Returns a value as a wide equation takes it.

        Args:
            value: the value.
            dtype: that of the program.
        """
        # With a scale, constants stay as written, as in a program that scales its loss.
        array = wide_form(value) if self.scale is None else own_form(value)
        wide_dtype = self.formats.widened(dtype)
        return as_dtype(array, wide_dtype)

    def _operands(self, node: Node, values: Sequence[Value], entry: Width) -> list[Leaf]:
        """Returns the operands of an equation as its entry has them."""
        if isinstance(entry, Computes):
            return [entry.settled(value) for value in values]
        settle = self.as_written if entry == WRITTEN else self.as_wide
        operands = []
        for value, var in zip(values, node.eqn.invars):
            operands.append(settle(value, var.aval.dtype))
        return operands

    # Equations

    def own(self, node: Node, values: Sequence[Value]) -> list[Leaf]:
        """Returns the results of an equation in the dtypes that the program has."""
        operands = []
        for value, var in zip(values, node.eqn.invars):
            array = wide_form(value)
            operands.append(_cast_inexact(array, var.aval.dtype))
        results = evaluate(node.eqn, operands, unchanged_dtype)
        return [self._fenced(result) for result in results]

    def computed(
        self, node: Node, values: Sequence[Value], entry: Width
    ) -> tuple[list[Leaf], list[Leaf]]:
        """Returns the operands and the results of an equation that computes."""
        if entry not in (WRITTEN, WIDE):
            # The line rounds, and so do the numbers that stand on it.
            values = [own_form(value) for value in values]
        if self.scale is None or not node.is_backward:
            return self._unscaled(node, values, entry)
        dtype_of = self.formats.written
        if isinstance(entry, Computes):
            dtype_of = entry.of
            # A gradient is rounded where the scaled one would be: in its result.
            entry = WRITTEN
        operands, results = self._unscaled(node, values, entry)
        rounded = []
        for result, var in zip(results, node.eqn.outvars):
            dtype = dtype_of(var.aval.dtype)
            rounded.append(self._rounded_as_if_scaled(result, dtype))
        return operands, rounded

    def _rounded_as_if_scaled(self, result: Leaf, dtype: DType) -> Leaf:
        """Returns what a backward pass makes in a dtype where the loss is scaled."""
        if kind(dtype) != "float" or bits(dtype) >= bits(result.dtype):
            return result
        # A power of two moves a number in the range of a dtype, digits and all.
        scale = jnp.asarray(self.scale).astype(result.dtype)
        return round_to(result * scale, dtype) / scale

    def _unscaled(
        self, node: Node, values: Sequence[Value], entry: Width
    ) -> tuple[list[Leaf], list[Leaf]]:
        """Returns operands and results, whatever the scale of the loss."""
        operands = self._operands(node, values, entry)
        try:
            results = self._results(node, operands, entry)
        except REFUSALS:
            # No other dtype computes it, so both sides have it as written.
            results = self.own(node, values)
            if isinstance(entry, Computes):  # as `autocast` does
                results = [_cast_inexact(result, entry.result) for result in results]
            else:
                self.program.leave_out(node.stack)
        return operands, [self._fenced(result) for result in results]

    def _results(self, node: Node, operands: list[Leaf], entry: Width) -> list[Leaf]:
        if entry == WRITTEN:
            return self._written(node, operands)
        if entry == ROUNDED and node.rounds:
            return self._rounded(node, operands)
        return self._evaluated(node, operands, entry)

    def _written(self, node: Node, operands: list[Leaf]) -> list[Leaf]:
        narrow = self.formats.narrow
        takes_narrow = node.name not in primitives.OF_OWN_DTYPES
        if narrow is None or (takes_narrow and narrow.itemsize > 1):
            return self._evaluated(node, operands, WRITTEN)
        # Nothing computes in 8 bits: results are rounded to them.
        results = self.own(node, operands)
        return [self.as_written(result, result.dtype) for result in results]

    def _evaluated(self, node: Node, operands: list[Leaf], entry: Width) -> list[Leaf]:
        """Returns the results of an equation; outside of a trace, compiled.

        To bind a primitive takes twice as long as to call what JAX compiles of it.
        """
        algorithm = self.formats.algorithm(node.eqn, is_wide=entry != WRITTEN)
        if algorithm is not None:
            return product(node.eqn, operands, algorithm)
        dtype_of = self.formats.widened
        if isinstance(entry, Computes):
            dtype_of = entry.of
        elif entry == WRITTEN:
            dtype_of = self.formats.written
        if self.is_traced:
            return evaluate(node.eqn, operands, dtype_of)
        # All calls of a jitted function have the same equations.
        key = (id(node.eqn), entry, self.formats)
        if key not in self.program.functions:
            equation_key, run = binding(node.eqn, dtype_of)
            self.program.functions[key] = _compiled_equation(equation_key, run)
        return self.program.functions[key](*operands)

    def _rounded(self, node: Node, operands: list[Leaf]) -> list[Leaf]:
        """Returns the wide results, rounded as the equation rounds as written."""
        # A device's rounding is of the operands, which `_written` makes of exact ones.
        if self.formats.products is not None:
            return self._written(node, operands)
        exact = self._evaluated(node, operands, WIDE)
        narrow = self._operands(node, operands, WRITTEN)
        written = self._written(node, narrow)
        # In wide types of operands as written: what the equation itself rounds is the
        # difference to this.
        widened = self._operands(node, narrow, WIDE)
        from_narrow = self._evaluated(node, widened, WIDE)
        results = []
        for array, result, narrow_result in zip(written, exact, from_narrow):
            if is_inexact(result):
                fenced = self._fenced(array)
                result = rounded_as(fenced, result, narrow_result)
            results.append(result)
        return results

    def _fenced(self, array: Leaf) -> Leaf:
        """Returns an array; if it is narrow, XLA shall not keep it wide."""
        if not self.is_traced or not is_inexact(array):
            return array
        is_wide = self.formats.widened(array.dtype) == array.dtype
        if is_wide and bits(array.dtype) >= 32:
            return array
        return lax.optimization_barrier(array)


def _cast_inexact(array: Leaf, dtype: DType) -> Leaf:
    if not is_inexact(array):
        return array
    return as_dtype(array, dtype)
