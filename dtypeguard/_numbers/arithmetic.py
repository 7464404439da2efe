"""What one equation makes of its operands: as written, wide, or the error of it alone."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.dtypes import bits, kind
from .._leaves.types import DType, Leaf
from .._program.jaxprs import Arrays
from .._program.program import Node
from . import primitives
from .evaluate import (
    DtypeOf,
    as_dtype,
    bound,
    evaluate,
    retyped_params,
    round_to,
    rounded_as,
    unchanged_dtype,
)
from .formats import Formats, product
from .host import NotOnHost, cast_on_host, computed_on_host, host_array
from .plans import ROUNDED, WIDE, WRITTEN, Computes
from .primitives import Results, is_inexact
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
Values = Sequence[Value]
# What an equation computes in: `WRITTEN`, `WIDE`, `ROUNDED` or the dtypes of a plan.
Width = int | Computes


def own_form(value: Value) -> Leaf:
    """Returns a value as it is written."""
    if isinstance(value, Either):
        return value.written
    return value


def wide_form(value: Value) -> Leaf:
    """Returns a value as it is in wide types."""
    if isinstance(value, Either):
        return value.wide
    return value


# To call what JAX has compiled takes a third as long as to bind a primitive.
_compiled_cast = jax.jit(as_dtype, static_argnums=1)
_compiled_rounding = jax.jit(rounded_as)
_compiled = jax.jit(bound, static_argnums=(0, 1))
# Each as written rounds its exact result, and no more.
_ROUNDED_ONCE = frozenset(["add", "add_any", "sub", "mul", "sqrt", "square"])
_ON_CPU_IN_FLOAT32 = frozenset(["dot_general", "conv_general_dilated"])


def _is_in_float32(node: Node, operands: Arrays) -> bool:
    """Returns whether XLA computes a product of 16 bits in float32."""
    if node.name not in _ON_CPU_IN_FLOAT32:
        return False
    if jax.default_backend() != "cpu":
        return False
    # An algorithm says itself what operands are rounded to.
    precision = node.eqn.params["precision"] or ()
    if not isinstance(precision, tuple):
        return False
    # Of operands of two dtypes it rounds the wider one first.
    operand_bits = {bits(operand.dtype) for operand in operands}
    return operand_bits == {16}


def _rounded_alike(*arrays: Leaf) -> Leaf:
    """Returns what `rounded_as` does, on the host or compiled."""
    try:
        host_arrays = map(host_array, arrays)
        return rounded_as(*host_arrays)
    except NotOnHost:
        return _compiled_rounding(*arrays)


class Rule(NamedTuple):
    """The form of values that an equation takes, and its dtypes.

    Attributes:
        form: returns the form of a value.
        takes: returns the dtype of an operand, by that in the program.
        makes: returns the dtype of a result, by that in the program.
    """

    form: Callable[[Value], Leaf]
    takes: DtypeOf
    makes: DtypeOf


_AS_PROGRAM_HAS_IT = Rule(wide_form, unchanged_dtype, unchanged_dtype)


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

    def __post_init__(self):
        # Each equation asks for it.
        self.rule = functools.cache(self._rule)

    # Values

    def both_forms(
        self,
        array: Leaf,
        intended: Leaf,
        narrowed: Callable[[Leaf, DType], Leaf] = as_dtype,
    ) -> Value:
        """Returns a constant, or a sample, as written and in wide types.

        Args:
            array: the value as the program has it.
            intended: the value as it was meant.
            narrowed: converts the value to a narrower dtype.
        """
        if not is_inexact(array):
            return array
        narrow_dtype = self.formats.written(array.dtype)
        wide_dtype = self.formats.widened(array.dtype)
        written = narrowed(array, narrow_dtype)
        wide = as_dtype(intended, wide_dtype)
        return Either(written, wide)

    def _rule(self, entry: Width) -> Rule:
        """Returns how an equation with an entry computes."""
        if isinstance(entry, Computes):
            operands = entry._replace(result=entry.dtype)
            return Rule(own_form, takes=operands.of, makes=entry.of)
        formats = self.formats
        if entry == WRITTEN:
            return Rule(own_form, formats.written, formats.written)
        form = own_form
        # Where a line rounds, so do the numbers that stand on it. With a scale, constants
        # stay as written, as in a program that scales its loss.
        if entry == WIDE and self.scale is None:
            form = wide_form
        return Rule(form, formats.widened, formats.widened)

    def settled(self, value: Leaf, dtype: DType) -> Leaf:
        """Returns a value in a dtype, which XLA shall not leave out."""
        if value.dtype == dtype:
            return value
        if self.is_traced:
            converted = as_dtype(value, dtype)
            return self._fenced(converted)
        try:
            return cast_on_host(value, dtype)
        except NotOnHost:
            return _compiled_cast(value, dtype)

    def _operands(self, node: Node, values: Values, rule: Rule) -> Results:
        """Returns the operands of an equation by a rule."""
        operands = []
        for value, var in zip(values, node.eqn.invars):
            dtype = rule.takes(var.aval.dtype)
            form = rule.form(value)
            operands.append(self.settled(form, dtype))
        return operands

    # Equations

    def own(self, node: Node, values: Values) -> Results:
        """Returns the results of an equation in the dtypes that the program has."""
        operands = self._operands(node, values, _AS_PROGRAM_HAS_IT)
        results = evaluate(node.eqn, operands, unchanged_dtype)
        return list(map(self._fenced, results))

    def computed(self, node: Node, values: Values, entry: Width) -> tuple[Results, Results]:
        """Returns the operands and the results of an equation that computes."""
        if self.scale is None or not node.is_backward:
            return self._unscaled(node, values, entry)
        rounds_to = self.formats.written
        if isinstance(entry, Computes):
            rounds_to = entry.of
            # A gradient is rounded where the scaled one would be: in its result.
            entry = WRITTEN
        operands, results = self._unscaled(node, values, entry)
        rounded = []
        for result, var in zip(results, node.eqn.outvars):
            dtype = rounds_to(var.aval.dtype)
            # A power of two moves a number in the range of a dtype, digits and all.
            if bits(dtype) < bits(result.dtype):
                scale = jnp.asarray(self.scale, result.dtype)
                scaled = round_to(result * scale, dtype)
                result = scaled / scale
            rounded.append(result)
        return operands, rounded

    def _unscaled(
        self, node: Node, values: Values, entry: Width
    ) -> tuple[Results, Results]:
        """Returns operands and results, whatever the scale of the loss."""
        rule = self.rule(entry)
        operands = self._operands(node, values, rule)
        try:
            if entry == ROUNDED and node.rounds:
                results = self._rounded(node, operands)
            else:
                results = self._evaluated(node, operands, entry)
        except REFUSALS:
            # No other dtype computes it, so both sides have it as written.
            results = self.own(node, values)
            if isinstance(entry, Computes):  # as `autocast` does
                results = self._all_settled(node, results, entry.of)
            else:
                self.program.leave_out(node.stack)
        results = list(map(self._fenced, results))
        return operands, results

    def _all_settled(self, node: Node, results: Arrays, dtype_of: DtypeOf) -> Results:
        """Returns the results of an equation in the dtypes that a rule makes."""
        settled = []
        for result, var in zip(results, node.eqn.outvars):
            dtype = dtype_of(var.aval.dtype)
            settled.append(self.settled(result, dtype))
        return settled

    def _evaluated(self, node: Node, operands: Results, entry: Width) -> Results:
        """Returns the results of an equation; outside of a trace by NumPy, or compiled.

        To bind a primitive takes twice as long as to call what JAX compiles of it.
        """
        eqn = node.eqn
        dtype_of = self.rule(entry).makes
        if entry == WRITTEN and self._only_rounds(node):
            results = self.own(node, operands)
            return self._all_settled(node, results, dtype_of)
        algorithm = self.formats.algorithm(eqn, entry != WRITTEN)
        if algorithm is not None:
            return product(eqn, operands, algorithm)
        if self.is_traced:
            return evaluate(eqn, operands, dtype_of)
        # XLA does the same, and takes ten times as long to compile that.
        if _is_in_float32(node, operands):
            dtype = dtype_of(eqn.outvars[0].aval.dtype)
            wide_dtype = np.promote_types(dtype, np.float32)
            in_float32 = Computes(wide_dtype, wide_dtype)
            _, results = self._unscaled(node, operands, in_float32)
            return self._all_settled(node, results, dtype_of)
        with contextlib.suppress(NotOnHost):
            return [computed_on_host(eqn, operands, dtype_of)]
        params = retyped_params(eqn, dtype_of)
        try:
            return _compiled(eqn.primitive, params, *operands)
        except ValueError:  # a parameter has no hash
            return bound(eqn.primitive, params, *operands)

    def _only_rounds(self, node: Node) -> bool:
        """Returns whether nothing computes an equation in the narrow dtype."""
        narrow = self.formats.narrow
        if narrow is None:
            return False
        if narrow.itemsize == 1:
            return True
        return node.name in primitives.OF_OWN_DTYPES

    def _rounded(self, node: Node, operands: Results) -> Results:
        """Returns the wide results, rounded as the equation rounds as written."""
        rule = self.rule(WRITTEN)
        narrow = self._operands(node, operands, rule)
        exact = self._evaluated(node, operands, WIDE)
        # In wide types of operands as written: what the equation itself rounds is the
        # difference to this.
        wide_rule = self.rule(WIDE)
        widened = self._operands(node, narrow, wide_rule)
        from_narrow = self._evaluated(node, widened, WIDE)
        rounds_once = self._rounds_once(node)
        if rounds_once:
            all_written = self._all_settled(node, from_narrow, rule.makes)
        else:
            all_written = self._evaluated(node, narrow, WRITTEN)
        results = []
        for array, result, narrow_result in zip(all_written, exact, from_narrow):
            if is_inexact(result):
                fenced = self._fenced(array)
                written = self.settled(fenced, result.dtype)
                rounded = self._round_trip(result, array.dtype)
                as_narrow = written
                if not rounds_once:
                    as_narrow = self._round_trip(narrow_result, array.dtype)
                result = _rounded_alike(written, result, rounded, narrow_result, as_narrow)
            results.append(result)
        return results

    def _rounds_once(self, node: Node) -> bool:
        """Returns whether an equation as written rounds its exact result, and no more."""
        if node.name not in _ROUNDED_ONCE:
            return False
        (result,) = node.eqn.outvars
        dtype = self.formats.written(result.aval.dtype)
        if kind(dtype) != "float":
            return False
        return dtype.itemsize > 1

    def _round_trip(self, array: Leaf, dtype: DType) -> Leaf:
        """Returns a wide array rounded to a narrow dtype."""
        if self.is_traced:
            return round_to(array, dtype)
        narrow = self.settled(array, dtype)
        return self.settled(narrow, array.dtype)

    def _fenced(self, array: Leaf) -> Leaf:
        """Returns an array; if it is narrow, XLA shall not keep it wide."""
        if not self.is_traced:
            return array
        if not is_inexact(array):
            return array
        is_wide = self.formats.widened(array.dtype) == array.dtype
        if is_wide and bits(array.dtype) >= 32:
            return array
        return lax.optimization_barrier(array)
